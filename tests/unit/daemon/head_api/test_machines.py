"""One machine: drain, undrain, remove."""

from __future__ import annotations

import pytest

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.codes import ProblemCode, RefusalCode
from meshd.model.desired import Target
from meshd.model.machine import Phase, Removal, UnfitReason
from tests.codes import refused
from tests.head_room import ROOT, HeadRoom, look_around
from tests.unit.daemon.munge_lab import MungeLab as MungeLab
from tests.unit.worlds import NOW, around, machine, node


async def test_remove_says_who_and_stays_removed(room: HeadRoom) -> None:
    m = room.journal.put(machine(Phase.DRAINING, removal=Removal.SCALE_DOWN), "phase", "given", NOW)
    room.journal.set_target(Target("h100", 1), "said", NOW)
    await room.head.call(e.REMOVE, s.RemoveRequest(machine=m.slot), ROOT)
    assert room.get(m.name).removal is Removal.BY_USER
    room.seen = around(m, "IDLE", "DRAIN")
    room.slurm.seen = room.seen.slurm.value  # type: ignore[union-attr]
    room.reconciler.tick()
    await room.settle()
    assert room.get(m.name).phase is Phase.DRAINING, "the target does not bring it back"
    await room.head.call(e.REMOVE, s.RemoveRequest(machine=m.name, force=True), ROOT)
    await room.head.call(e.REMOVE, s.RemoveRequest(machine=m.name), ROOT)
    assert room.get(m.name).removal is Removal.FORCED, "a later, gentler word does not call force back"


async def test_force_names_the_jobs(room: HeadRoom) -> None:
    m = room.journal.put(machine(Phase.READY), "phase", "given", NOW)
    room.seen = around(m, "ALLOCATED", jobs={m.slot: "7"})
    room.reconciler.tick()
    gentle = await room.head.call(e.REMOVE, s.RemoveRequest(machine=m.name), ROOT)
    assert (gentle.jobs, gentle.warnings) == (["7"], [])
    forced = await room.head.call(e.REMOVE, s.RemoveRequest(machine=m.name, force=True), ROOT)
    assert "job 7 loses the node" in forced.warnings[0]


async def test_what_is_gone_or_going_is_told(room: HeadRoom) -> None:
    gone = room.journal.put(machine(Phase.GONE, gone_at=NOW), "phase", "given", NOW)
    going = room.journal.put(machine(Phase.TERMINATING, index=2), "phase", "given", NOW)
    with refused(RefusalCode.MACHINE_GONE):
        await room.head.call(e.REMOVE, s.RemoveRequest(machine=gone.name), ROOT)
    assert "already" in (await room.head.call(e.REMOVE, s.RemoveRequest(machine=going.name), ROOT)).text
    with refused(RefusalCode.NO_SUCH_MACHINE):
        await room.head.call(e.REMOVE, s.RemoveRequest(machine="lab-none-1-abcdef"), ROOT)
    with refused(RefusalCode.NOT_IN_SLURM):
        await room.head.call(e.DRAIN, s.DrainRequest(machine=going.name), ROOT)


async def test_a_slot_without_a_machine_is_no_unknown_name(room: HeadRoom) -> None:
    with refused(RefusalCode.SLOT_EMPTY) as empty:
        await room.head.call(e.DRAIN, s.DrainRequest(machine="h100-8"), ROOT)
    assert "meshctl explain h100-8" in empty.value.cure
    live = room.journal.put(machine(Phase.READY), "phase", "given", NOW)
    with refused(RefusalCode.NO_SUCH_MACHINE) as near:
        await room.head.call(e.REMOVE, s.RemoveRequest(machine="h10-1"), ROOT)
    assert live.slot in near.value.cure
    gone = room.journal.put(machine(Phase.GONE, index=3, gone_at=NOW), "phase", "given", NOW)
    seen = await room.head.call(e.EVENTS, s.EventsQuery(limit=9, machine=(gone.slot,)))
    assert [event.machine for event in seen.events] == [gone.name], "the events of its last machine can still be read"


async def test_undrain_does_not_call_back_what_leaves(room: HeadRoom) -> None:
    m = room.journal.put(machine(Phase.DRAINING, removal=Removal.SCALE_DOWN), "phase", "given", NOW)
    with refused(RefusalCode.MACHINE_LEAVES):
        await room.head.call(e.UNDRAIN, s.DrainRequest(machine=m.name), ROOT)


@pytest.mark.parametrize(("said", "reason"), [("", "drained by root"), ("meshd: x", "drained by root: meshd: x")])
async def test_a_drain_by_a_person_survives_acceptance(room: HeadRoom, said: str, reason: str) -> None:
    """The node was drained while it was TESTING: it is not accepted before it is opened again."""
    m = room.journal.put(machine(Phase.TESTING), "phase", "given", NOW)
    room.slurm.set(node(m, "IDLE"))
    await room.head.call(e.DRAIN, s.DrainRequest(machine=m.name, reason=said), ROOT)
    assert room.slurm.seen.nodes[m.slot].reason == reason
    await look_around(room, m)
    assert (room.get(m.name).phase, room.get(m.name).unfit_reason) == (Phase.TESTING, UnfitReason.BY_PERSON)
    assert room.slurm.seen.nodes[m.slot].drained
    (problem,) = [problem for problem in room.service.problems() if problem.machine == m.name]
    assert (problem.code, problem.severity, problem.blocking) == (ProblemCode.NODE_UNFIT, "info", True)
    assert f"meshctl undrain {m.slot}" in problem.cure
    await room.head.call(e.UNDRAIN, s.DrainRequest(machine=m.name), ROOT)
    assert not room.slurm.seen.nodes[m.slot].drained
    await look_around(room, m)
    assert room.get(m.name).phase is Phase.READY


async def test_a_dry_run_of_a_removal_changes_nothing(room: HeadRoom) -> None:
    m = room.journal.put(machine(Phase.READY), "phase", "given", NOW)
    before = room.journal.last_event_id()
    answer = await room.head.call(e.REMOVE, s.RemoveRequest(machine=m.slot, dry_run=True), ROOT)
    assert (answer.machine, room.get(m.name).removal, room.journal.last_event_id()) == (m.name, None, before)
