"""What is done for a READY node that is not fit, short of replacing it. PURE.

Its verdict is journaled, jobs are kept off a GPU that is broken, slurmd is started again once, and a drain of meshd's
own is lifted when its cause is over. A person's drain is never touched, and neither is one of Slurm's.
"""

from __future__ import annotations

from meshd.model.machine import Machine, UnfitReason
from meshd.model.plan import Drain, RecordFitness, RestartSlurmd, Step, Undrain
from meshd.plan.fitness import RESTART_HELPS, Unfit, unfit
from meshd.plan.plan_input import PlanInput


def repair(machine: Machine, given: PlanInput) -> Step | None:
    """The step that a READY node needs for its fitness; None when it is well, or has to wait."""
    found = unfit(machine, given.view)
    noted = note(machine, given, found)
    if noted is not None or found is None or found.deliberate:
        return noted
    node = given.node(machine)
    if found.why is UnfitReason.GPU_FAULT and node is not None and not node.drained and node.up:
        return Drain(machine.name, found.words, machine.slot)
    lasts = (given.now - found.since).total_seconds() >= given.policy.unfit_grace_s
    if not lasts or machine.heartbeat_at is None:
        return None
    if found.why is UnfitReason.BY_MESHD and _well(machine, given):
        return Undrain(machine.name, "what it was drained for is over", machine.slot)
    restarted = machine.slurmd_restarted_at
    tried = restarted is not None and restarted >= found.since
    # Where slurmd is alive a job might be hurt by its restart; a dead one hurts nobody.
    harmless = found.why is UnfitReason.SLURMD_DEAD or given.idle(machine)
    if found.why in RESTART_HELPS and harmless and not tried:
        return RestartSlurmd(machine.name, found.words)
    return None


def note(machine: Machine, given: PlanInput, found: Unfit | None) -> RecordFitness | None:
    """The verdict for the journal, when it is another one than the journal has."""
    reason = found.why if found else None
    if reason is machine.unfit_reason or (found is None and not _known(machine, given)):
        return None
    text = f"unfit: {found.words}" if found else "is fit again"
    return RecordFitness(machine.name, text, reason, found.since if found else given.now)


def _known(machine: Machine, given: PlanInput) -> bool:
    """Slurm, tailnet and agent all have spoken since: that nothing is wrong is known, and not only not seen."""
    view = given.view
    seen = view.slurm_at is not None and view.slurm_at > machine.phase_since
    return seen and view.tailnet is not None and view.report(machine) is not None


def _well(machine: Machine, given: PlanInput) -> bool:
    report = given.view.report(machine)
    return report is not None and report.gpu_fault_since is None
