"""What is done for a READY node that is not fit, short of replacing it. PURE.

Its verdict is journaled, jobs are kept off a GPU that is broken, slurmd is started again once, and a drain of meshd's
own is lifted when its cause is over. A person's drain is never touched, and neither is one of Slurm's.
"""

from __future__ import annotations

from meshd.model.machine import Machine
from meshd.model.plan import Drain, NoteFitness, RestartSlurmd, Step, Undrain
from meshd.plan.fitness import MARK, RESTART_HELPS, Unfit, Why, marked, marks_with, unfit
from meshd.plan.world import World

RESTARTED = "slurmd_restarted"
"""The mark of a node whose slurmd meshd has started again."""


def repair(machine: Machine, world: World) -> Step | None:
    """The step that a READY node needs for its fitness; None when it is well, or has to wait."""
    found = unfit(machine, world.sight)
    noted = note(machine, world, found)
    if noted is not None or found is None or found.deliberate:
        return noted
    node = world.node(machine)
    if found.why is Why.GPU_FAULT and node is not None and not node.drained and node.up:
        return Drain(machine.name, found.words, machine.slot)
    lasts = (world.now - found.since).total_seconds() >= world.policy.unfit_grace_s
    if not lasts or machine.heartbeat_at is None:
        return None
    if found.why is Why.BY_MESHD and _well(machine, world):
        return Undrain(machine.name, "what it was drained for is over", machine.slot)
    restarted = machine.marks.get(RESTARTED)
    tried = restarted is not None and restarted >= found.since
    # Where slurmd is alive a job might be hurt by its restart; a dead one hurts nobody.
    harmless = found.why is Why.SLURMD_DEAD or world.idle(machine)
    if found.why in RESTART_HELPS and harmless and not tried:
        return RestartSlurmd(machine.name, found.words)
    return None


def note(machine: Machine, world: World, found: Unfit | None) -> NoteFitness | None:
    """The verdict for the journal, when it is another one than the journal has."""
    noted = marked(machine)
    if found is None and (noted is None or not _known(machine, world)):
        return None
    marks = marks_with(machine, found)
    if {mark for mark in marks if mark.startswith(MARK)} == {mark for mark in machine.marks if mark.startswith(MARK)}:
        return None
    text = f"unfit: {found.words}" if found else "is fit again"
    return NoteFitness(machine.name, text, found.why.value if found else "", found.since if found else world.now)


def _known(machine: Machine, world: World) -> bool:
    """Slurm, tailnet and agent all have spoken since: that nothing is wrong is known, and not only not seen."""
    sight = world.sight
    seen = sight.slurm_at is not None and sight.slurm_at > machine.phase_since
    return seen and sight.tailnet is not None and sight.report(machine) is not None


def _well(machine: Machine, world: World) -> bool:
    report = world.sight.report(machine)
    return report is not None and report.gpu_fault_since is None
