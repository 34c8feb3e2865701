"""What one pool rents and gives back: first for Slurm's demand, then for its target. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshd.model.desired import Desired, Pool
from meshd.model.machine import Machine, Removal
from meshd.model.observed import Snapshot
from meshd.model.plan import CancelRemoval, OpenSlots, RefusedDemand, Remove, Step
from meshd.plan.cover import units as offer_units
from meshd.plan.demand import Demand, demand_of
from meshd.plan.demand_growth import DemandGrowth
from meshd.plan.hosted_demand import HostedDemand
from meshd.plan.hosts import bound, standing
from meshd.plan.plan_input import PlanInput
from meshd.plan.room import Money
from meshd.plan.scale import Beside, scale_steps, supply, supply_gpus, units


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The part of a plan that is about one pool's size; the fields are as in `Plan`."""

    pool: str
    steps: tuple[Step, ...]
    refused: tuple[RefusedDemand, ...] = ()
    open_slots: OpenSlots | None = None
    bound_slots: Mapping[str, str] = field(default_factory=dict)
    unwanted_slots: tuple[str, ...] = ()


def pool_plan(
    desired: Desired,
    pool: Pool,
    machines: Sequence[Machine],
    snapshot: Snapshot,
    given: PlanInput,
    money: Money,
) -> PoolPlan:
    """The steps of one pool, and what of its demand cannot be had. `machines` are those that are not GONE."""
    owned = bound(desired, pool, machines, given)
    there = standing(pool, owned, money)
    if not pool.from_queue or given.slurm is None:
        beside = Beside(units=sum(offer_units(step.offer) for step in there), closed=owned.slots)
        steps = [*there, *scale_steps(desired, pool, machines, snapshot, given, money, beside, owned)]
        return PoolPlan(pool.name, tuple(steps))
    demand = demand_of(pool, machines, given, snapshot.by_person)
    demand = replace(demand, closed=demand.closed | owned.slots)
    steps = [*there]
    steps += [CancelRemoval(m.name, "Slurm powers its slot up again: a job waits for it") for m in demand.kept]
    removed = _cancelled(desired, pool, machines, demand)
    steps += [
        Remove(m.name, f"job {', '.join(m.for_jobs)} does not wait for it any more", Removal.SCALE_DOWN)
        for m in removed
    ]
    have = [*(m for m in supply(machines) if m not in removed), *demand.kept]
    growth = DemandGrowth(desired, pool, machines, have, snapshot, given, money)
    hosted = HostedDemand(pool, owned, given, frozen=desired.freeze is not None)
    steps += growth.steps(hosted.without(demand.gangs))
    steps += hosted.requests({slot for one in growth.refused for slot in one.slots}, money)
    refusals = (*growth.refused, *hosted.refused)
    lacking = demand.lacking - {slot for one in refusals for slot in one.slots}
    coming = [step for step in there if step.subject not in lacking]
    arriving = len(lacking) * promised_units(pool) + sum(offer_units(step.offer) for step in coming)
    beside = Beside(demand.kept, removed, demand.slots, arriving, demand.closed)
    moved = {step.subject for step in steps if isinstance(step, Remove)}
    beside_steps = scale_steps(desired, pool, machines, snapshot, given, money, beside, owned)
    steps += [step for step in beside_steps if step.subject not in moved]  # a machine has one step at a time
    return PoolPlan(
        pool.name,
        tuple(steps),
        refusals,
        growth.open_slots(demand),
        owned.states,
        _unwanted(demand, removed),
    )


def promised_units(pool: Pool) -> int:
    """What a machine that just holds the promise counts towards a target."""
    return (pool.promise.gpus if pool.promise is not None else pool.gpus_per_node) or 1


def _cancelled(desired: Desired, pool: Pool, machines: Sequence[Machine], demand: Demand) -> tuple[Machine, ...]:
    """The machines whose jobs are gone, but for those that the target needs anyway."""
    target = desired.target(pool)
    left = supply_gpus(machines) + sum(units(m) for m in demand.kept)
    floor = target.gpus if target is not None else 0
    removed = []
    for machine in demand.cancelled:
        if left - units(machine) >= floor:
            left -= units(machine)
            removed.append(machine)
    return tuple(removed)


def _unwanted(demand: Demand, removed: Sequence[Machine]) -> tuple[str, ...]:
    """The slots to which nothing is on its way; one whose machine stays for the target will be a node."""
    staying = {m.slot for m in demand.cancelled if m not in removed}
    return tuple(slot for slot in demand.unwanted if slot not in staying)
