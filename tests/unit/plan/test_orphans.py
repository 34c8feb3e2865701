"""Machines that the journal does not know, or that are GONE in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshd.model import plan as p
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh
from meshd.plan.planner import plan
from meshd.provider_api import Instance, InstanceState
from tests.unit.worlds import GONE_DARK, NOW, OFFER, ago, instance, machine, node, peer, slurm, snapshot, tailnet

POOL = Pool("h100", "h100", 1, 4, ("aws",))
LOST = machine(Phase.READY, index=3)
STRAY = instance(LOST)


def steps(
    *machines: Machine, stray: Instance = STRAY, gpus: int | None = None, seen: dict[str, Any] | None = None,
    **parts: Any,
) -> list[p.Step]:  # fmt: skip
    listed = (*(instance(m) for m in machines if m.instance_id and m.phase is not Phase.GONE), stray)
    whole = snapshot(**{"instances": {"aws": Fresh(listed, NOW)}, **(seen or {})})
    targets = {} if gpus is None else {"h100": Target("h100", gpus)}
    decided = plan(Desired("lab", {"h100": POOL}, targets), machines, whole, NOW, **parts)
    return [s for s in decided.steps if isinstance(s, p.AdoptOrphan | p.TerminateOrphan)]


def test_one_of_ours_is_adopted_when_nothing_speaks_against_it() -> None:
    found = steps()
    assert isinstance(found[0], p.AdoptOrphan)
    assert (found[0].slot, found[0].offer.gpus) == ("h100-3", 1)


def test_a_type_that_nobody_offers_counts_as_the_pools() -> None:
    found = steps(stray=replace(STRAY, instance_type="g.9"))
    assert isinstance(found[0], p.AdoptOrphan)
    assert (found[0].offer.gpus, found[0].offer.gpu) == (1, "h100"), "else it would be replaced at once"


def test_young_ones_have_time() -> None:
    assert steps(stray=replace(STRAY, launched_at=ago(60))) == []
    untold = replace(STRAY, launched_at=None)
    assert steps(stray=untold) == []
    assert steps(stray=untold, first_seen={("aws", STRAY.id): ago(301)}) != []


def test_of_another_name_or_slot_it_is_ended() -> None:
    for token in ("", "lab-other-1-abcdef", "lab-h100-9-abcdef", "lab-h100-03-abcdef", "else-h100-3-abcdef"):
        assert isinstance(steps(stray=replace(STRAY, token=token))[0], p.TerminateOrphan), token


def test_no_machine_is_asked_for_beside_one_that_is_adopted() -> None:
    """It would get the same slot, or be in another place than the rest of its gang."""
    whole = snapshot(instances={"aws": Fresh((STRAY,), NOW)}, offers={"aws": Fresh((OFFER,), NOW)})
    wanted = Desired("lab", {"h100": POOL}, {"h100": Target("h100", 4)})
    for late in ((), {("aws", STRAY.id)}):
        assert [type(step) for step in plan(wanted, (), whole, NOW, late_ids=late).steps] == [p.AdoptOrphan]
    there = machine(Phase.BOOTING, index=3, instance_id=STRAY.id)
    asked = [step.subject for step in plan(wanted, (there,), whole, NOW).steps if isinstance(step, p.RequestMachine)]
    assert asked == ["h100-1", "h100-2", "h100-4"]


def test_no_order_goes_out_beside_one_that_is_adopted() -> None:
    """With that one, the limits in USD may allow fewer."""
    waiting = machine(Phase.REQUESTED, index=1, created_at=ago(5))
    whole = snapshot(instances={"aws": Fresh((STRAY,), NOW)}, offers={"aws": Fresh((OFFER,), NOW)})
    wanted = Desired("lab", {"h100": replace(POOL, max_usd_per_hour=OFFER.usd_per_hour)}, {"h100": Target("h100", 1)})
    assert [type(step) for step in plan(wanted, (waiting,), whole, NOW).steps] == [p.AdoptOrphan]
    found = machine(Phase.BOOTING, index=3, instance_id=STRAY.id)
    (step,) = [one for one in plan(wanted, (waiting, found), whole, NOW).steps if one.subject == waiting.name]
    assert isinstance(step, p.Move)
    assert step.to is Phase.GONE


def test_a_second_one_of_a_slot_is_ended() -> None:
    other = machine(Phase.READY, index=3, name="lab-h100-3-zzzzzz", instance_id="i-9")
    assert isinstance(steps(other)[0], p.TerminateOrphan)


def test_not_while_it_may_be_behind_a_slot_at_work() -> None:
    """The journal was lost, another machine was rented for its slot, and its job still runs."""
    other = machine(Phase.BOOTING, index=3, name="lab-h100-3-zzzzzz", instance_id="i-9")
    busy = Fresh(slurm(node(LOST, "ALLOCATED"), jobs={"h100-3": "7"}), NOW)
    here = Fresh(tailnet(peer(LOST)), NOW)
    line = {"h100-3": LOST.tailnet_ip}
    assert steps(other, seen={"slurm": busy, "tailnet": here, "node_addrs": line}) == []
    assert steps(other, seen={"slurm": GONE_DARK, "tailnet": here, "node_addrs": line}) == []
    assert steps(other, seen={"slurm": busy, "tailnet": GONE_DARK, "node_addrs": line}) == []


def test_not_while_it_may_be_the_node_of_a_slot_that_is_up() -> None:
    """The journal was lost, no pool needs the machine, and a job may start on it right after Slurm was read."""
    idle = Fresh(slurm(node(LOST, "IDLE")), NOW)
    assert steps(gpus=0, seen={"slurm": idle, "tailnet": GONE_DARK}) == []
    (found,) = steps(gpus=0, seen={"slurm": idle, "tailnet": Fresh(tailnet(peer(LOST)), NOW),
                                   "node_addrs": {"h100-3": LOST.tailnet_ip}})  # fmt: skip
    assert isinstance(found, p.AdoptOrphan), "it leaves like any other"
    down = Fresh(slurm(node(LOST, "DOWN")), NOW)
    (found,) = steps(gpus=0, seen={"slurm": down, "tailnet": GONE_DARK})
    assert isinstance(found, p.TerminateOrphan)


def test_ended_ones_and_stale_listings_are_nothing() -> None:
    for state in (InstanceState.GONE, InstanceState.TERMINATING, InstanceState.PREEMPTED):
        assert steps(stray=replace(STRAY, state=state)) == []
    assert steps(seen={"instances": {"aws": GONE_DARK}}) == []
    assert steps(seen={"instances": {"aws": Fresh((STRAY,), ago(1000))}}) == []


@pytest.mark.parametrize("state", [InstanceState.STOPPED, InstanceState.FAILED])
def test_one_that_is_off_or_ill_costs_and_is_ended(state: InstanceState) -> None:
    off = replace(STRAY, state=state)
    lost = Fresh(slurm(node(LOST, "ALLOCATED", "NOT_RESPONDING"), jobs={"h100-3": "7"}), NOW)
    away = Fresh(tailnet(replace(peer(LOST), online=False)), NOW)
    here = {"tailnet": away, "node_addrs": {"h100-3": LOST.tailnet_ip}, "slurm": lost}
    for gpus, seen in ((None, {}), (3, {}), (3, here), (0, {"slurm": GONE_DARK})):
        (found,) = steps(stray=off, gpus=gpus, seen=seen)
        assert isinstance(found, p.TerminateOrphan), "nothing runs on it, whatever its slot does"
    assert steps(stray=replace(off, launched_at=ago(60))) == []


@pytest.mark.parametrize("state", [InstanceState.STOPPED, InstanceState.FAILED])
def test_one_that_works_whatever_its_cloud_says_is_taken_over(state: InstanceState) -> None:
    off = replace(STRAY, state=state)
    busy = Fresh(slurm(node(LOST, "ALLOCATED"), jobs={"h100-3": "7"}), NOW)
    for online in (True, False):
        seen_by_tailnet = Fresh(tailnet(replace(peer(LOST), online=online)), NOW)
        here = {"tailnet": seen_by_tailnet, "node_addrs": {"h100-3": LOST.tailnet_ip}, "slurm": busy}
        (found,) = steps(stray=off, gpus=3, seen=here)
        assert isinstance(found, p.AdoptOrphan), "a job runs on it"
    dark = {"slurm": GONE_DARK, "tailnet": GONE_DARK}
    assert steps(stray=off, gpus=0, seen=dark) == [], "whether it works is not known"


def test_it_counts_as_what_its_type_is_wherever_that_is_offered() -> None:
    eight = replace(OFFER, region="r7", zone="r7a", instance_type="g.8", gpus=8, usd_per_hour=20.0)
    seen = {"offers": {"aws": Fresh((OFFER, eight), NOW)}}
    (found,) = steps(stray=replace(STRAY, instance_type="g.8", spot=True, usd_per_hour=9.0), seen=seen)
    assert isinstance(found, p.AdoptOrphan)
    offer = found.offer
    assert (offer.gpus, offer.region, offer.spot, offer.usd_per_hour) == (8, "r1", True, 9.0)


def test_what_was_called_gone_and_is_listed_again_is_ended_anew_never_adopted() -> None:
    key = ("aws", STRAY.id)
    gone = replace(LOST, phase=Phase.GONE)
    assert steps(gone, ended_ids={key}, first_seen={key: ago(10)}) == [], "a listing may lag"
    for machines in ((gone,), ()):
        found = steps(*machines, ended_ids={key}, first_seen={key: ago(400)})
        assert isinstance(found[0], p.TerminateOrphan)


def test_a_machine_whose_call_is_unclear_is_not_its_own_orphan() -> None:
    unclear = machine(Phase.LAUNCHING, index=3, launch_called_at=NOW)
    assert steps(replace(unclear, name=LOST.name)) == []


def test_nor_one_with_a_step_in_flight() -> None:
    assert steps(busy={LOST.name}) == []
    assert steps(busy={STRAY.id}, gpus=0) == []


LATE = {("aws", STRAY.id)}
YOUNG = replace(STRAY, launched_at=ago(5))


def test_one_whose_create_call_was_given_up_is_dealt_with_at_once() -> None:
    assert steps(stray=YOUNG) == []
    (found,) = steps(stray=YOUNG, late_ids=LATE)
    assert isinstance(found, p.AdoptOrphan), "its slot is free, and the pool is wanted"
    assert "a create call that had been given up has made it" in found.reason
    other = machine(Phase.BOOTING, index=3, name="lab-h100-3-zzzzzz", instance_id="i-9")
    (found,) = steps(other, stray=YOUNG, late_ids=LATE)
    assert isinstance(found, p.TerminateOrphan), "another one was rented in its place"
    (found,) = steps(stray=YOUNG, late_ids=LATE, gpus=0)
    assert isinstance(found, p.TerminateOrphan), "nobody wants it any more"


def test_a_second_one_of_the_same_name_is_ended_whatever_the_first_is_doing() -> None:
    for phase in (Phase.BOOTING, Phase.READY, Phase.TERMINATING):
        first = machine(phase, index=3, instance_id="i-9")
        (found,) = steps(first, stray=YOUNG, late_ids=LATE)
        assert isinstance(found, p.TerminateOrphan), "adopted, it would take the first one's place in the journal"
        assert found.instance.id == STRAY.id
