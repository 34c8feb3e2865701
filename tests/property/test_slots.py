"""Free slots, whatever states Slurm shows: what meshd may never do to them, and that it comes to an end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from meshd.codes import DemandCode
from meshd.model.observed import SlurmJob, SlurmNode, SlurmView
from meshd.model.plan import OpenSlots, Plan
from meshd.plan.slots import SlotChanges, SlotPool, slot_changes
from tests.unit.worlds import NOW

POOL = SlotPool("h100", 4, "h100")
BASES = ("IDLE", "DOWN", "MIXED", "ALLOCATED")
FLAGS = ("DRAIN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "NOT_RESPONDING")
REASONS = (("", ""), ("meshd: no capacity", "slurm"), ("keep out", "ann"), ("ResumeTimeout reached", "slurm"))


@st.composite
def views(draw: st.DrawFn) -> SlurmView:
    nodes, jobs = {}, []
    for index in range(1, 5):
        name, base = f"h100-{index}", draw(st.sampled_from(BASES))
        states = frozenset({"CLOUD", base, *draw(st.sets(st.sampled_from(FLAGS)))})
        reason, by = draw(st.sampled_from(REASONS))
        nodes[name] = SlurmNode(name, name, states, reason, reason_by=by)
        if base in ("MIXED", "ALLOCATED"):
            state = draw(st.sampled_from(("CONFIGURING", "RUNNING")))
            jobs.append(SlurmJob(str(index), "u", "h100", state, (name,)))
    return SlurmView("24.11.5", nodes, tuple(jobs), power_saving=True)


plans = st.sampled_from(
    (
        Plan(), Plan(open_slots={"h100": OpenSlots(4)}),
        *(
            Plan(open_slots={"h100": OpenSlots(n, DemandCode.NO_CAPACITY, "aws has none", NOW + timedelta(minutes=5))})
            for n in range(4)
        ),
    )
)  # fmt: skip


def touched(changes: SlotChanges) -> set[str]:
    drained = (slot for slots in changes.drain.values() for slot in slots)
    return {*drained, *changes.power_down, *changes.strays, *changes.resume, *changes.off_now}


def obeyed(view: SlurmView, changes: SlotChanges) -> SlurmView:
    """Slurm after all of it, and after the time that powering down takes."""
    nodes = dict(view.nodes)
    for slot in (*changes.power_down, *changes.strays, *changes.off_now):
        nodes[slot] = replace(nodes[slot], states=frozenset({"CLOUD", "IDLE", "POWERED_DOWN"}))
    for slot in changes.resume:
        nodes[slot] = replace(nodes[slot], states=nodes[slot].states - {"DRAIN"})
    for reason, slots in changes.drain.items():
        for slot in slots:
            states = nodes[slot].states | {"DRAIN"}
            nodes[slot] = replace(nodes[slot], states=states, reason=reason, reason_by="slurm")
    return replace(view, nodes=nodes)


@given(views(), plans)
def test_a_slot_that_a_job_has_is_neither_drained_nor_powered_down(view: SlurmView, plan: Plan) -> None:
    changes = slot_changes([POOL], (), view, plan)
    held = {name for name, node in view.nodes.items() if node.held}
    assert not held & (touched(changes) - set(changes.resume))


@given(views(), plans)
def test_what_a_person_drained_stays(view: SlurmView, plan: Plan) -> None:
    persons = {name for name, node in view.nodes.items() if node.drained and node.reason_by == "ann"}
    assert not persons & touched(slot_changes([POOL], (), view, plan))


@given(views(), plans)
def test_it_comes_to_an_end(view: SlurmView, plan: Plan) -> None:
    for _ in range(3):
        changes = slot_changes([POOL], (), view, plan)
        if not touched(changes):
            return
        view = obeyed(view, changes)
    assert not touched(slot_changes([POOL], (), view, plan))
