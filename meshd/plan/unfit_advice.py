"""What becomes of a node that is not fit: what meshd does and when, and what a person can do. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from meshd.model.desired import Desired
from meshd.model.machine import Machine, UnfitReason
from meshd.plan.fitness import RESTART_HELPS, Unfit
from meshd.plan.plan_input import ClusterView
from meshd.plan.replace import due_at, why_not


def next_step(machine: Machine, found: Unfit, machines: Sequence[Machine], desired: Desired, view: ClusterView) -> str:
    """What meshd does about it, and when; "" when it leaves the node alone.

    Args:
        machine: the node.
        found: why it is not fit.
        machines: its pool's, all that are not GONE.
        desired: what is wanted.
        view: what is known.
    """
    if found.deliberate:
        return "meshd leaves it alone: somebody wants it so"
    if found.why is UnfitReason.SILENT:
        return _when_silent(machine, view)
    if found.why is UnfitReason.BY_MESHD:
        return "meshd lifts its drain once the agent reports that nothing is wrong any more"
    parts = []
    if found.why is UnfitReason.GPU_FAULT:
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


def _when_silent(machine: Machine, view: ClusterView) -> str:
    heard = machine.heartbeat_at or machine.phase_since
    lost = max(heard, view.tailnet_since) + timedelta(seconds=view.policy.heartbeat_lost_s)
    return (
        f"meshd gives it up{_at(lost, view.now)} when it is still silent, Slurm does not reach it either, and no job "
        "is on it; its jobs are Slurm's, which gives them up SlurmdTimeout after the node's last answer"
    )


def cure(machine: Machine, found: Unfit) -> str:
    """What a person can do."""
    slot = machine.slot
    look = f"`meshctl explain {slot}` shows slurmd's log"
    give_back = f"`meshctl remove {slot}` gives it back after its jobs"
    match found.why:
        case UnfitReason.BY_PERSON:
            return f"`meshctl undrain {slot}` opens it again"
        case UnfitReason.MAINTENANCE:
            return "`scontrol show reservation` tells of maintenance; a reboot ends by itself"
        case UnfitReason.DRAINED:
            return f"{look}; when the cause is gone, `meshctl undrain {slot}`; {give_back}"
        case UnfitReason.GPU_FAULT:
            return f"`nvidia-smi` and `dmesg` on the machine tell more; {give_back}"
        case UnfitReason.POWERED_DOWN:
            return f"`scontrol update nodename={slot} state=power_up` wakes it"
        case UnfitReason.ABSENT:
            return "`meshctl doctor` checks Slurm's files"
        case UnfitReason.SILENT:
            return f"`tailscale ping {machine.tailnet_ip}` tells whether it can be reached; {give_back}"
    return f"{look}; {give_back}"
