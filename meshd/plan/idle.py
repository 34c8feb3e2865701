"""Which machines have had no job for too long, and the target without them. PURE."""

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
"""How squeue's reasons begin for jobs that wait for nodes (squeue(1), "JOB REASON CODES")."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A machine to give back, and why.

    Attributes:
        target: the pool's new target; None where nobody has set one.
    """

    machine: Machine
    target: Target | None
    reason: str


def idle_since(
    before: Mapping[str, datetime],
    machines: Sequence[Machine],
    view: ClusterView,
) -> dict[str, datetime]:
    """By name, since when each idle machine has had no job.

    A machine is missing when it has a job or that is not known. A node that a person drained is not idle, nor is one
    with jobs waiting for nodes in its partition. An unfit node is idle whenever no job is on it, since waiting jobs
    cannot use it.

    Args:
        before: the last result; empty when meshd has just started.
        machines: the machines to watch.
        view: the observed state. Without Slurm the times start over: a job may have come and gone meanwhile.
    """
    slurm = view.slurm
    if slurm is None or view.slurm_at is None:
        return {}
    at_work = {slot for job in slurm.jobs for slot in job.nodes}
    waited_for = {
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
        unused = node.up and not waited_for.intersection(node.partitions)
        if not why.deliberate if why is not None else unused:
            found[machine.name] = before.get(machine.name, view.slurm_at)
    return found


def give_back(
    pool: Pool, target: Target | None, machines: Sequence[Machine], idle: Mapping[str, datetime], now: datetime
) -> GivenBack | None:
    """The machine to give back: the one that was idle longest, if that is too long; None for none.

    Args:
        pool: its `idle_timeout_s` and `min_gpus` decide.
        target: the one that somebody set; None for none.
        machines: those of the pool that are not GONE.
        idle: by name, since when a machine is idle.
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
            # Units beyond the target go with the machine; units that are still missing stay in the target.
            left = min(max(have, target.gpus) - units(machine), target.gpus)
        if left >= pool.min_gpus:
            reason = f"{machine.slot} had no job for {_duration(idle_s)}"
            return GivenBack(machine, target and replace(target, gpus=left, by="meshd"), reason)
    return None


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
