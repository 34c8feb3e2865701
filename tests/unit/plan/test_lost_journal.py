"""After the journal was lost: the node of a slot is adopted, and none is ended that has a job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.observed import Fresh, SlurmJob, SlurmNode, SlurmView, Snapshot, TailnetPeer, TailnetView, Unavailable
from meshd.model.plan import AdoptOrphan, Plan, RequestMachine, TerminateOrphan
from meshd.plan.planner import plan
from meshd.provider_api import Instance, InstanceId, InstanceState, Offer, ProviderName

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AWS = ProviderName("aws")
OFFER = Offer(AWS, "r1", "r1a", "gpu.1", "h100-sxm", 1, 80, 8, 65536, 2.0)
POOL = Pool("h100", "h100", 1, 2, ("aws",))
OLD, NEW = "lab-h100-1-aaaaaa", "lab-h100-1-bbbbbb"


def decided(
    names: list[str],
    addresses: Mapping[str, str] | None,
    *,
    lines: Mapping[str, str],
    busy: bool = False,
    slurm: bool = True,
    target: int | None = None,
    age_s: float = 1000,
) -> Plan:
    """The plan over an empty journal. `addresses` are the tailnet's, by machine; None: it cannot be believed."""
    born = NOW - timedelta(seconds=age_s)
    instances = tuple(
        Instance(AWS, InstanceId(f"i-{name}"), name, InstanceState.RUNNING, "r1", "gpu.1", launched_at=born)
        for name in names
    )
    peers = {n: TailnetPeer(n, n, a, online=True) for n, a in (addresses or {}).items()}
    nodes = {s: SlurmNode(s, a, frozenset({"ALLOCATED" if busy else "IDLE"})) for s, a in lines.items()}
    jobs = (SlurmJob("7", "u", "h100", "RUNNING", ("h100-1",)),) if busy else ()
    gone = Unavailable("away", NOW)
    snapshot = Snapshot(
        instances={"aws": Fresh(instances, NOW)},
        offers={"aws": Fresh((OFFER,), NOW)},
        tailnet=Fresh(TailnetView("100.64.0.1", "head", addresses is not None, (), peers), NOW),
        slurm=Fresh(SlurmView("24.11.5", nodes, jobs), NOW) if slurm else gone,
        node_addrs=dict(lines),
    )
    targets = {} if target is None else {"h100": Target("h100", target)}
    return plan(Desired("lab", {"h100": POOL}, targets, Policy()), [], snapshot, NOW)


def verdicts(steps: Plan) -> dict[str, str]:
    return {
        step.instance.token: "adopted" if isinstance(step, AdoptOrphan) else "ended"
        for step in steps.steps
        if isinstance(step, AdoptOrphan | TerminateOrphan)
    }


LINE = {"h100-1": "100.64.0.5"}


def test_the_machine_behind_a_slot_is_adopted_with_its_address_even_when_nobody_wants_it() -> None:
    for target in (None, 0, 1):
        found = decided([OLD], {OLD: "100.64.0.5"}, lines=LINE, busy=True, target=target)
        (adopt,) = [step for step in found.steps if isinstance(step, AdoptOrphan)]
        assert (adopt.slot, adopt.tailnet_ip, adopt.offer) == ("h100-1", "100.64.0.5", OFFER)


def test_of_two_for_one_slot_the_one_behind_it_is_adopted_and_the_other_ended() -> None:
    addresses = {OLD: "100.64.0.4", NEW: "100.64.0.5"}
    for names in ([OLD, NEW], [NEW, OLD]):
        assert verdicts(decided(names, addresses, lines=LINE, busy=True)) == {NEW: "adopted", OLD: "ended"}


def test_nothing_is_decided_about_a_slot_while_the_tailnet_cannot_tell_who_is_behind_it() -> None:
    assert verdicts(decided([OLD, NEW], None, lines=LINE, busy=True)) == {}
    assert verdicts(decided([OLD], None, lines=LINE)) == {}


def test_a_machine_of_a_free_slot_is_adopted_when_it_may_be_wanted_and_ended_when_not() -> None:
    assert verdicts(decided([OLD], {OLD: "100.64.0.5"}, lines={})) == {OLD: "adopted"}
    assert verdicts(decided([OLD], {}, lines={}, target=1)) == {OLD: "adopted"}
    assert verdicts(decided([OLD], {}, lines={}, target=0)) == {OLD: "ended"}
    assert verdicts(decided([OLD], {}, lines={}, target=0, slurm=False)) == {}, "a job may be on it"


def test_a_stranger_with_our_tag_is_ended_after_the_grace_period() -> None:
    assert verdicts(decided(["made-by-hand"], {}, lines={})) == {"made-by-hand": "ended"}
    assert verdicts(decided(["made-by-hand"], {}, lines={}, age_s=10)) == {}


def test_a_slot_whose_line_is_nobodys_is_not_given_to_a_new_machine() -> None:
    found = decided([], {}, lines=LINE, busy=True, target=2)
    assert [step.subject for step in found.steps if isinstance(step, RequestMachine)] == ["h100-2"]


def test_nothing_is_rented_beside_one_that_will_be_adopted() -> None:
    """A target comes before the grace period is over: what is missing is known after it."""
    for lines, addresses in ((LINE, {OLD: "100.64.0.5"}), ({}, {})):
        for age_s, adopted in ((10, False), (1000, True)):
            found = decided([OLD], addresses, lines=lines, target=2, age_s=age_s)
            assert not any(isinstance(step, RequestMachine) for step in found.steps)
            assert verdicts(found) == ({OLD: "adopted"} if adopted else {})
