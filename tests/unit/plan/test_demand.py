"""What Slurm demands: which slots, for which jobs, and which machines nobody waits for any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshd.model import plan as p
from meshd.model.desired import Policy
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import Fresh
from meshd.plan.demand import PoweredUp, demand_of, powered_up
from meshd.plan.plan_input import PlanInput
from tests.unit.plan.queues import (
    POOL,
    POWERING_UP,
    THERE,
    by_queue,
    decided,
    job,
    removed,
    rents,
    requests,
    view,
)
from tests.unit.worlds import NOW, machine, snapshot


def of_slots(found: p.Plan) -> list[tuple[str, tuple[str, ...]]]:
    return [(step.subject, step.for_jobs) for step in requests(found)]


def test_each_slot_that_powers_up_for_a_job_gets_a_machine() -> None:
    found = decided(view(job(7, 2, 3), job(8, 5)))
    assert of_slots(found) == [("h100-2", ("7",)), ("h100-3", ("7",)), ("h100-5", ("8",))]
    assert all(step.by_queue for step in requests(found))
    assert {job.user for job in view(job(7, 2)).jobs} == {"u"}
    assert [step.reason.partition(" up ")[2] for step in requests(found)][1:] == ["for job 7 of u", "for job 8 of u"]


def test_a_gang_is_one_call_and_a_lone_machine_is_a_call_of_its_own() -> None:
    calls = {step.subject: step.gang for step in requests(decided(view(job(7, 2, 3), job(8, 5))))}
    assert calls["h100-2"] == calls["h100-3"] != ""
    assert calls["h100-5"] == ""


def test_nothing_is_rented_for_a_pool_that_people_drive_or_while_slurm_cannot_be_read() -> None:
    assert rents(decided(view(job(7, 2)), pool=replace(POOL, from_queue=False))) == []
    assert rents(decided(None)) == []


def test_a_slot_with_a_machine_is_not_rented_for_again() -> None:
    coming = by_queue(Phase.BOOTING, 2, 7)
    assert of_slots(decided(view(job(7, 2, 3), machines=[coming]), coming)) == [("h100-3", ("7",))]


def test_a_targets_machine_serves_a_job_as_well() -> None:
    coming = machine(Phase.BOOTING, index=2)
    assert rents(decided(view(job(7, 2), machines=[coming]), coming, gpus=1)) == []


def test_a_slot_whose_machine_leaves_waits_for_it() -> None:
    leaving = by_queue(Phase.BOOTING, 2, 7, removal=Removal.BY_USER)
    found = decided(view(job(7, 2, 3), machines=[leaving]), leaving)
    assert of_slots(found) == [("h100-3", ("7",))]
    assert not found.refused


def test_jobs_that_share_a_slot_are_one_gang() -> None:
    calls = {step.gang for step in requests(decided(view(job(7, 1, 2), job(8, 2, 3), job(9, 5, 6))))}
    assert len(calls) == 2


@pytest.mark.parametrize("states", [{"IDLE", "POWERING_UP"}, {"IDLE", "POWER_UP"}])
def test_a_slot_that_a_person_powered_up_gets_a_machine(states: set[str]) -> None:
    found = decided(view(states={3: states}), by_person=frozenset({"h100-3"}))
    assert of_slots(found) == [("h100-3", ())]
    assert found.unwanted_slots == ()


def test_a_slot_that_nobody_waits_for_is_unwanted() -> None:
    found = decided(view(states={3: {"IDLE", "POWERING_UP"}}))
    assert (rents(found), found.unwanted_slots) == ([], ("h100-3",))


@pytest.mark.parametrize("flag", ["DRAIN", "DOWN", "POWERING_DOWN"])
def test_a_slot_that_is_taken_back_already_is_not_demanded(flag: str) -> None:
    assert rents(decided(view(states={3: {"IDLE", "POWERING_UP", flag}}), by_person=frozenset({"h100-3"}))) == []


def test_a_drained_slot_whose_job_still_waits_is_demanded() -> None:
    assert of_slots(decided(view(job(7, 3), states={3: {*POWERING_UP, "DRAIN"}}))) == [("h100-3", ("7",))]


@pytest.mark.parametrize("phase", [Phase.REQUESTED, Phase.LAUNCHING, Phase.BOOTING, Phase.TESTING])
@pytest.mark.parametrize("states", [{"IDLE", "POWERING_UP"}, {"IDLE", "POWERED_DOWN"}, {"DOWN", "POWERED_DOWN"}])
def test_a_machine_whose_job_is_cancelled_is_given_back_at_once(phase: Phase, states: set[str]) -> None:
    coming = by_queue(phase, 3, 7)
    found = decided(view(machines=[coming], states={3: states}), coming)
    assert removed(found) == {coming.name}
    assert [step.removal for step in found.steps if isinstance(step, p.Remove)] == [Removal.SCALE_DOWN]
    assert found.unwanted_slots == (("h100-3",) if "POWERING_UP" in states else ())


def test_not_before_slurm_was_read_once_more() -> None:
    coming = by_queue(Phase.REQUESTED, 3, 7, created_at=NOW)
    assert removed(decided(view(machines=[coming], states={3: {"IDLE", "POWERING_UP"}}), coming)) == set()


def test_nor_one_that_another_job_got_or_that_a_person_wants_or_that_is_up() -> None:
    coming, theirs = by_queue(Phase.BOOTING, 3, 7), by_queue(Phase.BOOTING, 4)
    up = by_queue(Phase.TESTING, 5, 9)
    seen = view(
        job(8, 3), machines=[coming, theirs, up], states={4: {"IDLE", "POWERING_UP"}, 5: {"IDLE"}, 3: set(POWERING_UP)}
    )
    assert removed(decided(seen, coming, theirs, up)) == set()


def test_nor_one_that_the_target_needs() -> None:
    lost = [by_queue(Phase.BOOTING, i, 7) for i in (1, 2, 3)]
    seen = view(machines=lost, states={i: {"IDLE", "POWERING_UP"} for i in (1, 2, 3)})
    found = decided(seen, *lost, gpus=2)
    assert len(removed(found)) == 1
    assert len(found.unwanted_slots) == 1
    assert rents(found) == []


def test_a_machine_that_was_to_go_stays_when_a_job_gets_its_slot() -> None:
    going = by_queue(Phase.BOOTING, 3, 7, removal=Removal.SCALE_DOWN)
    found = decided(view(job(8, 3), machines=[going]), going)
    assert [(s.subject, type(s)) for s in found.steps] == [(going.name, p.CancelRemoval)]


def test_machines_that_a_job_has_are_its_gangs_place() -> None:
    ready = by_queue(Phase.READY, 1, 5, offer=THERE)
    assert {key for _, key in rents(decided(view(job(7, 1, 2), machines=[ready]), ready))} == {THERE.key}


def test_the_gang_knows_its_jobs_slots_and_machines() -> None:
    ready: Machine = by_queue(Phase.READY, 1, 5)
    slurm = Fresh(view(job(12, 1, 3, 2), machines=[ready]), NOW)
    seen = PlanInput.of(snapshot(slurm=slurm), Policy(), NOW, {})
    (gang,) = demand_of(POOL, [ready], seen).gangs
    assert (gang.jobs, gang.slots, gang.machines, gang.words) == (("12",), ("h100-2", "h100-3"), (ready,), "job 12")


# -- who powered a slot up --------------------------------------------------------------------------------------------


def test_a_slot_that_begins_to_power_up_without_a_job_was_powered_up_by_a_person() -> None:
    known = powered_up(PoweredUp(), view())
    assert powered_up(known, view(states={3: {"IDLE", "POWERING_UP"}})).slots == {"h100-3"}


def test_one_whose_job_was_cancelled_was_not() -> None:
    known = powered_up(powered_up(PoweredUp(), view()), view(job(7, 3)))
    cancelled = view(states={3: {"IDLE", "POWERING_UP"}})
    assert powered_up(powered_up(known, cancelled), cancelled).slots == frozenset()
    again = powered_up(powered_up(known, view()), cancelled)
    assert again.slots == {"h100-3"}, "it was down between"


def test_what_powers_up_in_the_first_look_counts_as_cancelled() -> None:
    cancelled = view(states={3: {"IDLE", "POWERING_UP"}})
    assert powered_up(powered_up(PoweredUp(), None), cancelled).slots == frozenset()
