"""Which machines go into one create call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from meshd.gang_id import gang_id
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.ids import machine_name
from meshd.model.machine import Machine, Phase
from meshd.model.plan import Launch, Plan, Remove, RequestMachine, Step
from meshd.plan.gang_orders import launched_together, with_calls
from meshd.plan.plan_summary import summary_of
from meshd.provider_api import Offer
from tests.unit.worlds import NOW, OFFER, machine

DEARER = replace(OFFER, zone="r1b", usd_per_hour=9.0)
GANGS = Policy(gang_max={"aws": 4})


def desired(*, spread: bool = False, gang_max: int = 4, slots: int = 2000, **changes: object) -> Desired:
    pool = Pool("h100", "h100", 1, slots, ("aws",))
    cpus = Pool("cpu", "", 0, slots, ("aws",))
    targets = {"h100": Target("h100", 8, spread=spread), "cpu": Target("cpu", 8)}
    policy = Policy(gang_max={"aws": gang_max} if gang_max else {})
    return replace(Desired("lab", {"h100": pool, "cpu": cpus}, targets, policy, {}, {}), **changes)  # type: ignore[arg-type]


def wanted(*slots: int, offer: Offer = OFFER, pool: str = "h100", gang: str = "", by_queue: bool = False) -> list[Step]:
    return [RequestMachine(f"{pool}-{n}", "wanted", pool, offer, by_queue=by_queue, gang=gang) for n in slots]


def calls(steps: Sequence[Step]) -> list[list[str]]:
    """The slots of each call with several machines, and of each other machine."""
    found: dict[str, list[str]] = {}
    for step in steps:
        if isinstance(step, RequestMachine):
            found.setdefault(step.gang or step.subject, []).append(step.subject)
    return list(found.values())


def test_equal_offers_of_one_scale_up_are_one_call() -> None:
    steps = [*wanted(1, 2), *wanted(3, offer=DEARER), *wanted(4)]
    assert calls(with_calls(desired(), steps)) == [["h100-1", "h100-2", "h100-4"], ["h100-3"]]


def test_the_steps_stay_in_their_order_and_others_are_left_alone() -> None:
    steps = [Remove("lab-h100-9-abcdef", "too many"), *wanted(2, 1)]
    after = with_calls(desired(), steps)
    assert after[0] == steps[0]
    assert [step.subject for step in after] == [step.subject for step in steps]


def test_no_more_than_the_provider_takes() -> None:
    assert [len(call) for call in calls(with_calls(desired(), wanted(*range(1, 11))))] == [4, 4, 2]
    assert [len(call) for call in calls(with_calls(desired(gang_max=0), wanted(1, 2)))] == [1, 1]


def test_a_target_that_may_be_spread_is_ordered_in_parts() -> None:
    assert calls(with_calls(desired(spread=True), wanted(1, 2))) == [["h100-1"], ["h100-2"]]
    assert calls(with_calls(desired(), wanted(1, 2, pool="cpu"))) == [["cpu-1"], ["cpu-2"]]


def test_a_target_takes_parts_of_what_could_not_be_had_together() -> None:
    key = CooldownKey.of_offer(OFFER)
    refused = Cooldown(key, NOW - timedelta(seconds=1), "sold out")
    steps = [*wanted(1, 2), *wanted(3, 4, offer=DEARER)]
    after = calls(with_calls(desired(expired_cooldowns={key: refused}), steps))
    assert after == [["h100-1"], ["h100-2"], ["h100-3", "h100-4"]]
    paused = replace(refused, cause=CooldownCause.PAUSE)
    assert len(calls(with_calls(desired(expired_cooldowns={key: paused}), wanted(1, 2)))) == 1


def test_a_job_takes_no_parts_and_two_jobs_are_two_calls() -> None:
    key = CooldownKey.of_offer(OFFER)
    refused = {key: Cooldown(key, NOW - timedelta(seconds=1), "sold out")}
    steps = [*wanted(1, 2, gang="7", by_queue=True), *wanted(3, 4, gang="8", by_queue=True), *wanted(5, by_queue=True)]
    after = calls(with_calls(desired(expired_cooldowns=refused), steps))
    assert after == [["h100-1", "h100-2"], ["h100-3", "h100-4"], ["h100-5"]]


@given(
    slots=st.sets(st.integers(1, 2000), min_size=1, max_size=300),
    gang_max=st.integers(2, 500),
    offers=st.lists(st.sampled_from([OFFER, DEARER]), min_size=300, max_size=300),
)
def test_every_call_has_an_id_one_offer_and_fits(slots: set[int], gang_max: int, offers: list[Offer]) -> None:
    steps = [step for slot, offer in zip(sorted(slots), offers, strict=False) for step in wanted(slot, offer=offer)]
    after = with_calls(desired(gang_max=gang_max), steps)
    assert [replace(step, gang="") for step in after if isinstance(step, RequestMachine)] == steps
    offer_of = {step.subject: step.offer for step in after if isinstance(step, RequestMachine)}
    for call in calls(after):
        assert len(call) <= gang_max
        assert len({offer_of[slot] for slot in call}) == 1
        assert gang_id([machine_name("lab", slot, "k7q2mz") for slot in call])


def launches(*machines: Machine) -> list[Launch]:
    steps = [Launch(m.name, "wanted") for m in machines]
    return [s for s in launched_together(steps, {m.name: m for m in machines}) if isinstance(s, Launch)]


def test_the_machines_of_a_gang_are_one_launch() -> None:
    one, two, three, other = (machine(Phase.REQUESTED, index=n, gang="a") for n in (1, 2, 3, 4))
    other, single = replace(other, gang="b"), machine(Phase.REQUESTED, index=5)
    found = launches(one, other, two, single, three)
    assert [step.machines for step in found] == [
        (one.name, two.name, three.name), (other.name,), (single.name,),
    ]  # fmt: skip


def test_machines_whose_call_is_unclear_are_not_ordered_with_those_that_had_none() -> None:
    first, again = machine(Phase.REQUESTED, index=1, gang="a"), machine(Phase.LAUNCHING, index=2, gang="a")
    assert [step.machines for step in launches(first, again)] == [(first.name,), (again.name,)]


def test_a_plan_shows_each_machine_of_a_call() -> None:
    machines = [machine(Phase.REQUESTED, index=n, gang="a") for n in (1, 2)]
    (step,) = launches(*machines)
    plan = Plan((step,))
    assert [row.subject for row in summary_of(plan, machines).rows] == [m.name for m in machines]
    assert plan.of(machines[1].name) == (step,)
