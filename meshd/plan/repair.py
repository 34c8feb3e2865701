"""Repairs of a READY node that is unfit, short of replacing it. PURE.

meshd records the verdict, drains a node on which jobs would fail, restarts slurmd once, and lifts its own drain when
the cause is over. It never lifts a drain by a person or by Slurm.
"""

from __future__ import annotations

from meshd.model.machine import Machine, UnfitReason
from meshd.model.plan import Drain, RecordFitness, RestartSlurmd, Step, Undrain
from meshd.plan.fitness import KEEPS_JOBS_OFF, RESTART_HELPS, Unfit, unfit
from meshd.plan.node_settings import unfit_faults
from meshd.plan.plan_input import PlanInput


def repair(machine: Machine, given: PlanInput) -> Step | None:
    """The step that makes a READY node fit again; None when it is fit or has to wait."""
    found = unfit(machine, given.view)
    verdict = record(machine, given, found)
    if verdict is not None or found is None or found.deliberate:
        return verdict
    node = given.node(machine)
    if found.why in KEEPS_JOBS_OFF and node is not None and not node.drained and node.up:
        return Drain(machine.name, found.words, machine.slot)
    lasts = (given.now - found.since).total_seconds() >= given.policy.unfit_grace_s
    if not lasts or machine.heartbeat_at is None:
        return None
    if found.why is UnfitReason.BY_MESHD and _well(machine, given):
        return Undrain(machine.name, "the fault that it was drained for is over", machine.slot)
    restarted = machine.slurmd_restarted_at
    tried = restarted is not None and restarted >= found.since
    # Restarting a slurmd that runs could harm a job; starting a dead one cannot.
    harmless = found.why is UnfitReason.SLURMD_DEAD or given.idle(machine)
    if found.why in RESTART_HELPS and harmless and not tried:
        return RestartSlurmd(machine.name, found.words)
    return None


def record(machine: Machine, given: PlanInput, found: Unfit | None) -> RecordFitness | None:
    """The step that journals the verdict; None when the journal has it already."""
    reason = found.why if found else None
    if reason is machine.unfit_reason or (found is None and not _known(machine, given)):
        return None
    text = f"unfit: {found.words}" if found else "is fit again"
    return RecordFitness(machine.name, text, reason, found.since if found else given.now)


def _known(machine: Machine, given: PlanInput) -> bool:
    """Whether Slurm, tailnet and agent were all read in this phase, so that the absence of a fault is known."""
    view = given.view
    seen = view.slurm_at is not None and view.slurm_at > machine.phase_since
    return seen and view.tailnet is not None and view.report(machine) is not None


def _well(machine: Machine, given: PlanInput) -> bool:
    report = given.view.report(machine)
    return report is not None and report.gpu_fault_since is None and not unfit_faults(report.faults)
