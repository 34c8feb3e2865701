"""Which machines have had no job for too long, and the target without them. PURE."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from meshd.model.desired import Pool, Target
from meshd.model.machine import Machine, Phase
from meshd.plan.billing import paid_for_s
from meshd.plan.fitness import unfit
from meshd.plan.plan_input import ClusterView
from meshd.plan.scale import supply_gpus, units
from meshd.provider_api import ProviderCapabilities

BY_QUEUE_IDLE_S = 600.0
"""The idle time where Slurm's queue drives a pool and its settings say nothing."""

LAST_PART_S = 120.0
"""A machine whose time is billed in longer parts is given back in the last seconds of one, since leaving takes time."""

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
    by_queue: Collection[str] = (),
) -> dict[str, datetime]:
    """By name, since when each idle machine has had no job.

    A machine is missing when it has a job or that is not known. A node that a person drained is not idle, nor is one
    with jobs waiting for nodes in its partition. An unfit node is idle whenever no job is on it, since waiting jobs
    cannot use it. Where Slurm's queue drives the pool, jobs that wait keep no node: Slurm gives a job the nodes that it
    can use at once, and powers up the others when it starts. What SuspendExcNodes and SuspendExcParts name stays.

    Args:
        before: the last result; empty when meshd has just started.
        machines: the machines to watch.
        view: the observed state. Without Slurm the times start over: a job may have come and gone meanwhile.
        by_queue: the pools that Slurm's queue drives.
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
        if node.busy or machine.slot in at_work or machine.slot in slurm.suspend_exc:
            continue
        why = unfit(machine, view)
        unused = node.up and (machine.pool in by_queue or not waited_for.intersection(node.partitions))
        if not why.deliberate if why is not None else unused:
            found[machine.name] = before.get(machine.name, view.slurm_at)
    return found


def is_timed(pool: Pool, machines: Sequence[Machine]) -> bool:
    """Whether idle machines of this pool are given back. `machines` are those of the pool."""
    return pool.idle_timeout_s is not None or pool.from_queue or any(m.by_queue for m in machines)


def give_back(
    pool: Pool,
    target: Target | None,
    machines: Sequence[Machine],
    idle: Mapping[str, datetime],
    now: datetime,
    billing: Mapping[str, ProviderCapabilities] | None = None,
) -> GivenBack | None:
    """The machine to give back: the one that was idle longest, if that is too long; None for none.

    With `idle_timeout_s` the target falls with the machine. Without, the target is a floor for machines that came by
    Slurm's queue.

    Args:
        pool: its `idle_timeout_s` and `min_gpus` decide.
        target: the one that somebody set; None for none.
        machines: those of the pool that are not GONE.
        idle: by name, since when a machine is idle.
        now: UTC.
        billing: by provider, how it bills: where the queue drives the pool, time that is paid for already is used.
    """
    have = supply_gpus(machines)
    candidates = [
        m
        for m in machines
        if m.name in idle and m.phase is Phase.READY and not (m.removal or m.failure or m.held or m.offer.standing)
    ]
    for machine in sorted(candidates, key=lambda m: (idle[m.name], m.name)):
        queued = pool.from_queue or machine.by_queue
        timeout_s = pool.idle_timeout_s or (BY_QUEUE_IDLE_S if queued else None)
        idle_s = (now - idle[machine.name]).total_seconds()
        if timeout_s is None or idle_s < timeout_s or (queued and _is_paid_for(machine, now, billing or {})):
            continue
        reason = f"{machine.slot} had no job for {_duration(idle_s)}"
        left = have - units(machine)
        if pool.idle_timeout_s is None:
            floor = max(pool.min_gpus, target.gpus if target is not None else 0)
            if left >= floor:
                return GivenBack(machine, None, reason)
            continue
        if target is not None:
            # Units beyond the target go with the machine; units that are still missing stay in the target.
            left = min(max(have, target.gpus) - units(machine), target.gpus)
        if left >= pool.min_gpus:
            return GivenBack(machine, target and replace(target, gpus=left, by="meshd"), reason)
    return None


def _is_paid_for(machine: Machine, now: datetime, billing: Mapping[str, ProviderCapabilities]) -> bool:
    """Whether more of its time is paid for than leaving takes."""
    begun = machine.launched_at or machine.launch_called_at or machine.created_at
    capabilities = billing.get(machine.provider, ProviderCapabilities())
    return paid_for_s((now - begun).total_seconds(), capabilities) > LAST_PART_S


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
