"""Until a cloud was listed after a restore no plan rents in its place or ends anything there, from any state."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.codes import DemandCode
from meshd.model import plan as p
from meshd.model.desired import Desired
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh, Snapshot, Unavailable
from meshd.model.restored import Restored
from meshd.plan.planner import plan
from meshd.plan.restored import listed_since
from meshd.provider_api import Instance, InstanceId, InstanceState
from tests.property.test_freeze import anything, is_held
from tests.property.test_plan_prefix import Ideal, states
from tests.tiers import bounded
from tests.unit.worlds import AWS, NOW, ago

LONG = Restored(ago(4000), frozenset({"aws"}), frozenset({"h100"}))
JUST = replace(LONG, at=ago(10))
ELSEWHERE = Restored(ago(4000), frozenset({"gce"}), frozenset({"h100"}))


def gone(step: p.Step) -> bool:
    return isinstance(step, p.Move) and step.to is Phase.GONE


@settings(max_examples=bounded(300, 20_000))
@given(anything(), st.sampled_from([LONG, JUST]), st.booleans())
def test_nothing_is_rented_or_ended_before_the_cloud_was_listed(
    start: tuple[Desired, list[Machine], Snapshot], restored: Restored, dark: bool
) -> None:
    desired, machines, seen = start
    if dark:
        seen = replace(seen, instances={"aws": Unavailable("no route", ago(4000))})
    first_seen = {(AWS, "i-x"): ago(9000)}
    found = plan(replace(desired, restored=restored), machines, seen, NOW, first_seen=first_seen)
    assert not [step for step in found.steps if is_held(step) or gone(step)]
    free = plan(desired, machines, seen, NOW, first_seen=first_seen)
    known = {(type(s), s.subject) for s in free.steps}
    for step in found.steps:
        behind = any((is_held(one) or gone(one)) and one.subject == step.subject for one in free.steps)
        assert (type(step), step.subject) in known or behind, "nothing new happens"
    for one in found.open_slots.values():
        assert (one.count == 0 and one.code is DemandCode.RESTORED_UNLISTED) == (restored is LONG), one
    for refused in found.refused:
        assert restored is LONG and refused.code is DemandCode.RESTORED_UNLISTED and "aws" in refused.reason


@settings(max_examples=bounded(100, 10_000))
@given(anything())
def test_where_another_cloud_is_waited_for_machines_of_this_one_are_ended(
    start: tuple[Desired, list[Machine], Snapshot],
) -> None:
    """They are known. But nothing is rented in their pool: what it lacks may be in the other cloud."""
    desired, machines, seen = start
    found = plan(replace(desired, restored=ELSEWHERE), machines, seen, NOW).steps
    assert not [step for step in found if isinstance(step, p.RequestMachine | p.Launch | p.Replace)]
    ends = (p.Remove, p.Terminate, p.RemoveDevice, p.TerminateOrphan)
    free = plan(desired, machines, seen, NOW).steps
    mine = {(type(s), s.subject) for s in found if isinstance(s, ends)}
    assert mine >= {(type(s), s.subject) for s in free if isinstance(s, p.Terminate | p.RemoveDevice)}
    other = replace(ELSEWHERE, pools=frozenset())
    assert plan(replace(desired, restored=other), machines, seen, NOW).steps == free


@settings(max_examples=bounded(60, 3000))
@given(states(), st.integers(0, 6), st.integers(1, 6))
def test_once_it_was_listed_all_comes_to_the_same_end(
    start: tuple[dict[str, Machine], dict[str, str], int], before: int, waited: int
) -> None:
    whole, held = Ideal(*start), Ideal(*start)
    for _ in range(before):
        held.carry_out(held.plan().steps)
    used = (one.providers for one in held.desired.pools.values())
    clouds = {m.provider for m in held.machines.values()}.union(*used)
    restored = Restored(ago(4000), frozenset(clouds), frozenset(held.desired.pools))
    held.desired = replace(held.desired, restored=restored)
    for _ in range(waited):
        steps = held.plan().steps
        assert not [step for step in steps if is_held(step) or gone(step)]
        held.carry_out(steps)
    held.desired = replace(held.desired, restored=None)
    assert whole.end() == held.end()


@given(st.integers(0, 300), st.integers(0, 300), st.integers(-4000, 300))
def test_only_a_listing_of_now_and_late_enough_counts(lag_s: int, age_s: int, restored_s: int) -> None:
    policy = replace(Desired("lab", {}, {}).policy, listing_lag_s=float(lag_s))
    restored = replace(LONG, at=ago(restored_s))
    instance = Instance(AWS, InstanceId("i-1"), "lab-h100-1-zzzzzz", InstanceState.RUNNING, "r1", "g.1")
    seen = Snapshot(
        {"aws": Fresh((instance,), ago(age_s)), "gce": Fresh((), NOW)}, {}, Unavailable("x", NOW), Unavailable("x", NOW)
    )
    late = age_s <= max(restored_s, 0) - lag_s
    assert listed_since(restored, seen, policy, NOW) == ({"aws"} if late and age_s <= policy.stale_after_s else set())
    dark = replace(seen, instances={"aws": Unavailable("no route", ago(9000))})
    assert not listed_since(restored, dark, policy, NOW)
