"""Machines that nobody has used for long, and the target without them. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from meshd.model.desired import Pool, Target
from meshd.model.machine import Machine, Phase
from meshd.plan.fitness import unfit
from meshd.plan.plan_input import ClusterView
from meshd.plan.scale import supply_gpus, units

_WAITS_FOR_NODES = ("Resources", "Priority", "ReqNodeNotAvail", "Nodes")
"""How squeue's reasons of jobs begin that more nodes would start (squeue(1), "JOB REASON CODES")."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A machine that is not needed, and why.

    Attributes:
        target: the one without it; None where nobody has set one.
    """

    machine: Machine
    target: Target | None
    reason: str


def idle_since(
    before: Mapping[str, datetime],
    machines: Sequence[Machine],
    view: ClusterView,
) -> dict[str, datetime]:
    """Since when each machine has had no job, by name; one that is not in it has one, or it is not known.

    A node that a person has drained is that person's, and one in whose partition jobs wait for nodes is about to be
    used: neither is idle. An unfit node is of no use to the jobs that wait, and idle as soon as no job is on it.

    Args:
        before: what this returned the last time; empty when meshd has just started.
        machines: those that are watched.
        view: what Slurm says now. Without it the time begins anew: a job may have come and gone meanwhile.
    """
    slurm = view.slurm
    if slurm is None or view.slurm_at is None:
        return {}
    at_work = {slot for job in slurm.jobs for slot in job.nodes}
    wanted = {
        j.partition for j in slurm.jobs if not j.nodes and j.state_reason.lstrip("(").startswith(_WAITS_FOR_NODES)
    }
    found: dict[str, datetime] = {}
    for machine in machines:
        node = slurm.nodes.get(machine.slot)
        if machine.phase is not Phase.READY or node is None or node.node_addr != machine.tailnet_ip:
            continue
        if node.busy or machine.slot in at_work:
            continue
        why = unfit(machine, view)
        unused = node.up and not wanted.intersection(node.partitions)
        if not why.deliberate if why is not None else unused:
            found[machine.name] = before.get(machine.name, view.slurm_at)
    return found


def give_back(
    pool: Pool, target: Target | None, machines: Sequence[Machine], idle: Mapping[str, datetime], now: datetime
) -> GivenBack | None:
    """The machine that was idle for longest, if that is too long and the pool keeps its least without it.

    Args:
        pool: its `idle_timeout_s` and `min_gpus` decide.
        target: as somebody has set it; None for a pool that is held as it is.
        machines: the pool's, all that are not GONE.
        idle: since when, by name.
        now: UTC.
    """
    timeout_s = pool.idle_timeout_s
    have = supply_gpus(machines)
    candidates = [
        m for m in machines if m.name in idle and m.phase is Phase.READY and not (m.removal or m.failure or m.held)
    ]
    for machine in sorted(candidates, key=lambda m: (idle[m.name], m.name)):
        idle_s = (now - idle[machine.name]).total_seconds()
        if timeout_s is None or idle_s < timeout_s:
            return None
        left = have - units(machine)
        if target is not None:
            # What the last machine brought over the target goes with it; what is still missing stays wanted.
            left = min(max(have, target.gpus) - units(machine), target.gpus)
        if left >= pool.min_gpus:
            reason = f"{machine.slot} had no job for {_duration(idle_s)}"
            return GivenBack(machine, target and replace(target, gpus=left, by="meshd"), reason)
    return None


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
