"""Advice about an unfit node: what meshd does and when, and what a person can do. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from meshd.model.desired import Desired
from meshd.model.machine import Machine, UnfitReason
from meshd.plaintext import counted
from meshd.plan.fitness import KEEPS_JOBS_OFF, RESTART_HELPS, Unfit
from meshd.plan.plan_input import ClusterView
from meshd.plan.replace import due_at, why_not


def next_step(machine: Machine, found: Unfit, machines: Sequence[Machine], desired: Desired, view: ClusterView) -> str:
    """What meshd does about an unfit node, and when; "" when it does nothing.

    Args:
        machine: the node's machine.
        found: why it is unfit.
        machines: those of its pool that are not GONE.
        desired: the desired state.
        view: the observed state.
    """
    node = view.slurm.nodes.get(machine.slot) if view.slurm else None
    if found.why is UnfitReason.POWERED_DOWN and node is not None and node.cloud:
        return _when_powered_down(machine, view)
    if found.deliberate:
        return "meshd does nothing: somebody decided it"
    if found.why is UnfitReason.SILENT:
        return _when_silent(machine, view)
    if found.why is UnfitReason.BY_MESHD:
        return "meshd lifts its drain when the agent no longer reports a fault"
    if found.why is UnfitReason.SPOT_NOTICE:
        return "meshd rents another machine, tells its jobs, and requeues those that allow it"
    parts = []
    if found.why in KEEPS_JOBS_OFF:
        parts.append("no new jobs start on it until the fault is gone")
    tried = machine.slurmd_restarted_at
    if found.why in RESTART_HELPS:
        if tried is not None and tried >= found.since:
            parts.append(f"slurmd was restarted at {tried:%H:%M:%S} UTC")
        else:
            when = found.since + timedelta(seconds=view.policy.unfit_grace_s)
            parts.append(f"meshd has slurmd restarted{_at(when, view.now)}{_after_jobs(found)}")
    parts.append(_replacement(machine, found, machines, desired, view))
    return "; ".join(part for part in parts if part)


def _at(when: datetime, now: datetime) -> str:
    return f" at {when:%H:%M:%S} UTC" if when > now else ""


def _after_jobs(found: Unfit) -> str:
    return "" if found.why is UnfitReason.SLURMD_DEAD else " when no job is on it"


def _replacement(
    machine: Machine, found: Unfit, machines: Sequence[Machine], desired: Desired, view: ClusterView
) -> str:
    due, pool = due_at(machine, found, view), desired.pools.get(machine.pool)
    if due is None or pool is None:
        return ""
    if not pool.replace_unfit:
        return f"it is not replaced: pools.{pool.name}.replace_unfit is off"
    text = f"meshd replaces it{_at(due, view.now)} when no job is on it"
    hindrance = why_not(desired, pool, machines, view.now)
    return f"{text}, but not yet: {hindrance}" if hindrance else text


def _when_powered_down(machine: Machine, view: ClusterView) -> str:
    report = view.report(machine)
    jobs = f"; it sees {counted(report.jobs, 'job')} that Slurm does not know" if report and report.jobs else ""
    return f"meshd gives it back when its agent sees no job{jobs}"


def _when_silent(machine: Machine, view: ClusterView) -> str:
    heard = machine.heartbeat_at or machine.phase_since
    lost = max(heard, view.tailnet_since) + timedelta(seconds=view.policy.heartbeat_lost_s)
    return (
        f"meshd gives it up{_at(lost, view.now)} if it is still silent, Slurm does not reach it either, and no job is "
        "on it; Slurm gives its jobs up SlurmdTimeout after the node's last answer"
    )


def cure(machine: Machine, found: Unfit) -> str:
    """What a person can do."""
    slot = machine.slot
    look = f"`meshctl explain {slot}` shows slurmd's log"
    give_back = f"`meshctl remove {slot}` gives it back after its jobs"
    match found.why:
        case UnfitReason.BY_PERSON:
            return f"`meshctl undrain {slot}` resumes it"
        case UnfitReason.MAINTENANCE:
            return "`scontrol show reservation` shows maintenance; a reboot ends by itself"
        case UnfitReason.DRAINED:
            return f"{look}; when the cause is gone, `meshctl undrain {slot}`; {give_back}"
        case UnfitReason.GPU_FAULT:
            return f"`nvidia-smi` and `dmesg` on the machine show more; {give_back}"
        case UnfitReason.SPOT_NOTICE:
            return f"`meshctl events --node {slot}` shows what is done for its jobs; docs/operations.md, Spot machines"
        case UnfitReason.SHARE_LOST:
            return f"see that the share's server answers; {look}"
        case UnfitReason.ACCOUNT_CLASH:
            return f"rename or remove the account on the machine; {give_back}"
        case UnfitReason.POWERED_DOWN:
            return f"`scontrol update nodename={slot} state=power_up` switches it on"
        case UnfitReason.ABSENT:
            return "`meshctl doctor` checks Slurm's files"
        case UnfitReason.SILENT:
            return f"`tailscale ping {machine.tailnet_ip}` shows whether it can be reached; {give_back}"
    return f"{look}; {give_back}"
