"""What Slurm is told of slots without a machine."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from meshd.codes import DemandCode
from meshd.model.machine import Machine, Phase
from meshd.model.observed import SlurmJob, SlurmNode, SlurmView
from meshd.model.plan import OpenSlots, Plan, RefusedDemand
from meshd.plan.slots import (
    NOBODY,
    SendBack,
    SlotChanges,
    SlotPool,
    reason_of,
    silent_with_jobs,
    slot_changes,
    to_close,
    unwanted_now,
)
from meshd.plan.waiting import SENT_BACK
from tests.unit.worlds import NOW, machine

POOL = SlotPool("h100", 4, "h100")
UNTIL = NOW + timedelta(minutes=10)
WHY = "aws has none"
CLOSED = OpenSlots(0, DemandCode.NO_CAPACITY, WHY, UNTIL)
REASON = reason_of(DemandCode.NO_CAPACITY, WHY, UNTIL)
BACK = SendBack("7", True, True, UNTIL, REASON).comment


def slot(index: int, *states: str, reason: str = "", by: str = "slurm", addr: str = "") -> SlurmNode:
    address = addr or f"239.192.0.{index}"
    return SlurmNode(f"h100-{index}", address, frozenset({"CLOUD", *states}), reason, reason_by=by if reason else "")


def idle(index: int, *more: str, reason: str = "", by: str = "slurm") -> SlurmNode:
    return slot(index, "IDLE", "POWERED_DOWN", *more, reason=reason, by=by)


def seen(*nodes: SlurmNode, jobs: tuple[SlurmJob, ...] = ()) -> SlurmView:
    return SlurmView("24.11.5", {node.name: node for node in nodes}, jobs, power_saving=True)


def changes(view: SlurmView, *machines: Machine, plan: Plan | None = None) -> SlotChanges:
    opened = {"h100": OpenSlots(4)}
    return slot_changes([POOL], machines, view, plan or Plan(open_slots=opened))


def closed(opened: OpenSlots = CLOSED, **more: object) -> Plan:
    return replace(Plan(open_slots={"h100": opened}), **more)  # type: ignore[arg-type]


def test_free_slots_in_order_need_nothing() -> None:
    assert changes(seen(*(idle(index) for index in range(1, 5)))).none


@pytest.mark.parametrize(
    ("node", "back"),
    [
        (slot(1, "DOWN", "POWERED_DOWN", reason="ResumeTimeout reached"), True),
        (slot(1, "DOWN", "NOT_RESPONDING", reason="meshd: free slot"), True),  # upgraded from a pool driven by hand
        (slot(1, "DOWN", "NOT_RESPONDING", reason="Not responding"), True),
        (slot(1, "DOWN", "POWERED_DOWN", reason="bad fan", by="root"), False),  # a person's
        (idle(1, "NOT_RESPONDING"), False),  # a resume leaves that for a moment: see `strays`
        (slot(1, "DOWN", "POWERED_DOWN", "POWER_DOWN"), False),  # on its way
        (slot(1, "IDLE", "POWERING_DOWN", "NOT_RESPONDING"), False),
        (slot(1, "IDLE", "POWERING_UP", "NOT_RESPONDING"), False),  # somebody waits, or `unwanted_slots` has it
        (slot(1, "MIXED", "POWERED_DOWN", "NOT_RESPONDING"), False),  # about to power up
    ],
)
def test_a_slot_that_no_job_could_use_is_brought_back(node: SlurmNode, back: bool) -> None:
    assert changes(seen(node)).power_down == (("h100-1",) if back else ())
    assert changes(seen(node), machine(Phase.BOOTING)).power_down == (), "its machine is on the way"


@pytest.mark.parametrize(
    ("node", "jobs", "stray"),
    [
        (slot(1, "IDLE"), (), True),
        (idle(1, "NOT_RESPONDING"), (), True),  # Slurm gives it to no job, if it stays so
        (idle(1, "NOT_RESPONDING", "DRAIN", reason="keep out", by="ann"), (), False),
        (slot(1, "IDLE", "DRAIN", reason="meshd: x"), (), True),
        (slot(1, "MIXED"), (), False),
        (slot(1, "IDLE"), (SlurmJob("7", "u", "h100", "RUNNING", ("h100-1",)),), False),
        (slot(1, "IDLE", "DRAIN", reason="keep", by="ann"), (), False),
    ],
)
def test_a_slot_that_is_up_without_a_machine(node: SlurmNode, jobs: tuple[SlurmJob, ...], stray: bool) -> None:
    assert changes(seen(node, jobs=jobs)).strays == (("h100-1",) if stray else ())


@pytest.mark.parametrize(
    ("states", "silent"),
    [
        (("ALLOCATED", "NOT_RESPONDING"), True),
        (("MIXED", "DRAIN", "NOT_RESPONDING"), True),
        (("ALLOCATED",), False),
        (("IDLE", "NOT_RESPONDING"), False),  # no job: see `is_stray`
        (("MIXED", "POWERING_UP", "NOT_RESPONDING"), False),
        (("MIXED", "POWERED_DOWN", "NOT_RESPONDING"), False),
        (("MIXED", "POWER_DOWN", "NOT_RESPONDING"), False),
        (("DOWN", "NOT_RESPONDING"), False),
    ],
)
def test_a_job_whose_machine_is_gone_does_not_run_for_ever(states: tuple[str, ...], silent: bool) -> None:
    node = slot(1, *states, reason="meshd: it leaves" if "DRAIN" in states else "", addr="100.64.0.2")
    view = seen(node, jobs=(SlurmJob("7", "u", "h100", "RUNNING", ("h100-1",)),))
    assert silent_with_jobs([], view) == (("h100-1",) if silent else ())
    assert silent_with_jobs([machine(Phase.READY)], view) == (), "its machine may be cut off for a while"
    gone = silent_with_jobs([machine(Phase.TERMINATING, left_slurm=True)], view)
    assert gone == silent_with_jobs([], view)
    if silent:
        plan = Plan(open_slots={"h100": OpenSlots(4)})
        assert slot_changes([POOL], [], view, plan, {"h100-1": "100.64.0.2"}).strays == ("h100-1",)
        other = slot_changes([POOL], [], view, plan, {"h100-1": "100.64.0.9"})
        assert other.none, "it is the node of a machine that the journal does not know"
        assert changes(view).none


def test_slots_that_cannot_be_had_are_drained_with_the_reason_and_the_time() -> None:
    view = seen(*(idle(index) for index in range(1, 5)))
    found = changes(view, plan=closed())
    assert found.drain == {REASON: ("h100-1", "h100-2", "h100-3", "h100-4")}
    assert f"{UNTIL:%H:%M}" in REASON
    assert WHY in REASON
    limited = OpenSlots(1, DemandCode.LIMIT_IN_ALL, WHY, UNTIL)
    assert list(changes(view, plan=closed(limited)).drain.values()) == [("h100-2", "h100-3", "h100-4")]


def test_what_is_drained_already_stays_so_and_nothing_flaps() -> None:
    ours = [idle(index, "DRAIN", reason=REASON) for index in range(1, 5)]
    assert changes(seen(*ours), plan=closed()).none
    limited = OpenSlots(2, DemandCode.NO_CAPACITY, WHY, UNTIL)
    half = [idle(1, "DRAIN", reason=REASON), idle(2), idle(3), idle(4, "DRAIN", reason=REASON)]
    assert changes(seen(*half), plan=closed(limited)).none, "those that are open stay open"


def test_a_later_time_is_told() -> None:
    later = replace(CLOSED, until=UNTIL + timedelta(minutes=20))
    found = changes(seen(idle(1, "DRAIN", reason=REASON)), plan=closed(later))
    assert list(found.drain.values()) == [("h100-1",)]


def test_drains_of_meshd_are_lifted_when_their_time_has_come_and_a_persons_stays() -> None:
    jobs = (
        SlurmJob("7", "u", "h100", "PENDING", (), "BeginTime", admin_comment=BACK),
        SlurmJob("8", "u", "h100", "PENDING", (), "BeginTime"),  # its own --begin
        SlurmJob("9", "u", "cpu", "PENDING", (), "BeginTime", admin_comment=BACK),
    )
    persons = idle(2, "DRAIN", reason="keep out", by="ann")
    found = changes(seen(idle(1, "DRAIN", reason=REASON), persons, jobs=jobs))
    assert found.resume == ("h100-1",)
    assert found.start_now == ("7",)
    assert changes(seen(idle(1), persons, jobs=jobs)).start_now == (), "a gang's time that no drain stands for"
    assert changes(seen(persons), plan=closed()).none


def test_nothing_is_drained_or_lifted_while_it_is_not_known_what_can_be_had() -> None:
    view = seen(idle(1), idle(2, "DRAIN", reason=REASON))
    assert changes(view, plan=Plan()).none


GANG = RefusedDemand("h100", ("7",), ("h100-1", "h100-2"), DemandCode.NO_CAPACITY, WHY, UNTIL)


@pytest.mark.parametrize(("batch", "requeue"), [(True, True), (True, False), (False, True)])
def test_a_job_that_cannot_have_its_slots_is_sent_back_once_the_others_are_drained(batch: bool, requeue: bool) -> None:
    job = SlurmJob("7", "u", "h100", "CONFIGURING", ("h100-1", "h100-2"), batch=batch, requeue=requeue)
    nodes = [slot(index, "MIXED", "POWERING_UP") for index in (1, 2)]
    found = changes(seen(*nodes, idle(3), jobs=(job,)), plan=closed(refused=(GANG,)))
    assert found.drain == {REASON: ("h100-3",)}, "Slurm would end a job whose own slot is drained"
    assert found.send_back == (SendBack("7", batch, requeue, UNTIL, REASON.removeprefix("meshd: ")),)
    assert found.send_back[0].comment.startswith(SENT_BACK) == batch
    assert found.unwanted == ("h100-1", "h100-2")
    back = replace(job, state="PENDING", nodes=(), state_reason="BeginTime", admin_comment=BACK)
    assert changes(seen(*nodes, idle(3), jobs=(back,)), plan=closed(refused=(GANG,))).send_back == ()


def test_a_slot_that_powers_up_for_nobody_is_closed_first() -> None:
    plan = replace(Plan(open_slots={"h100": OpenSlots(4)}), unwanted_slots=("h100-1",))
    powering = slot(1, "IDLE", "POWERING_UP")
    found = changes(seen(powering), plan=plan)
    assert (found.drain, found.unwanted) == ({}, ("h100-1",))
    assert to_close(("h100-1",), seen(powering)) == ("h100-1",)
    drained = replace(powering, states=powering.states | {"DRAIN"}, reason=NOBODY)
    assert unwanted_now(("h100-1",), seen(drained)) == ("h100-1",)
    assert to_close(("h100-1",), seen(drained)) == ()
    assert unwanted_now(("h100-1",), seen(powering)) == (), "not closed"
    job = SlurmJob("7", "u", "h100", "CONFIGURING", ("h100-1",))
    taken = replace(drained, states=(drained.states - {"IDLE"}) | {"MIXED"})
    assert unwanted_now(("h100-1",), seen(taken, jobs=(job,))) == (), "a job got it before it was closed"
    assert changes(seen(taken, jobs=(job,))).resume == ("h100-1",), "and may keep it"


def test_a_slot_that_is_being_switched_off_with_no_machine_behind_it_is_free_at_once() -> None:
    going = slot(1, "IDLE", "POWERING_DOWN")
    assert changes(seen(going)).off_now == ("h100-1",)
    assert changes(seen(going), machine(Phase.DRAINING)).off_now == (), "its slurmd may still run"
    assert changes(seen(going), plan=closed()).off_now == ()
    persons = slot(1, "IDLE", "POWERING_DOWN", "DRAIN", reason="keep", by="ann")
    assert changes(seen(persons)).off_now == ()


def test_slots_of_another_form_are_left_alone() -> None:
    plain = SlurmNode("h100-1", "239.192.0.1", frozenset({"DOWN"}), "meshd: free slot")
    foreign = slot(9, "DOWN", "POWERED_DOWN")
    plan = replace(closed(), unwanted_slots=("h100-1",), refused=(GANG,))
    assert changes(seen(plain, foreign), plan=plan).none


# -- jobs that were sent back -----------------------------------------------------------------------------------------


def sent_back(number: int, nodes: int, **more: object) -> SlurmJob:
    waits = SlurmJob(str(number), "u", "h100", "PENDING", (), "BeginTime", admin_comment=BACK, node_count=nodes)
    return replace(waits, **more)  # type: ignore[arg-type]


def waits(number: int, nodes: int) -> SlurmJob:
    return SlurmJob(str(number), "u", "h100", "PENDING", (), "Resources", node_count=nodes)


def test_a_job_that_was_sent_back_starts_when_enough_nodes_are_idle() -> None:
    nodes = (slot(1, "IDLE"), slot(2, "IDLE"), slot(3, "IDLE", "DRAIN"), slot(4, "MIXED"))
    there = [machine(Phase.READY, slot=f"h100-{i}", index=i) for i in (1, 2, 3, 4)]

    def early(*jobs: SlurmJob) -> set[str]:
        return set(changes(seen(*nodes, jobs=jobs), *there, plan=closed()).start_early)

    assert early(sent_back(7, 2)) == {"7"}
    assert early(sent_back(7, 3)) == set(), "one of the idle nodes is drained"
    assert early(sent_back(7, 1), sent_back(8, 2)) == {"7"}
    assert early(sent_back(7, 1), sent_back(8, 1)) == {"7", "8"}
    assert early(sent_back(7, 2), waits(8, 2)) == set(), "Slurm gives them to that one"
    assert early(sent_back(7, 2), waits(8, 3)) == {"7"}, "that one cannot have them"
    assert early(sent_back(7, 2, required_nodes=("h100-4",))) == set()
    assert early(sent_back(7, 2, admin_comment="")) == set(), "its user chose the time"
    assert early(sent_back(7, 2, admin_comment="meshd: no h100 can be had now")) == set(), "and so did this one, later"
    assert early(sent_back(7, 0)) == set(), "how many it asks for is not known"


def test_a_slot_that_was_closed_is_powered_down_by_the_next_meshd() -> None:
    node = slot(1, "IDLE", "POWERING_UP", "POWER_DOWN", "DRAIN", reason=NOBODY)
    found = changes(view := seen(node, idle(2)))
    assert found.unwanted == ("h100-1",)
    assert (to_close(found.unwanted, view), unwanted_now(found.unwanted, view)) == ((), ("h100-1",))
