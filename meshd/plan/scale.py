"""More or fewer machines, so that each pool has the GPUs it shall have. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from meshd.model.desired import Desired, Pool, Target
from meshd.model.ids import slot_name
from meshd.model.machine import COUNTS_AS_SUPPLY, HOLDS_SLOT, Machine, Phase
from meshd.model.observed import Fresh, Snapshot
from meshd.model.plan import KeepAfterAll, Remove, RequestMachine, Step, Warn
from meshd.plan.lifecycle import World
from meshd.plan.placement import ranked, why_none

_EARLIEST_FIRST = (
    Phase.REQUESTED,
    Phase.LAUNCHING,
    Phase.BOOTING,
    Phase.JOINING,
    Phase.CONFIGURING,
    Phase.TESTING,
    Phase.READY,
)


def supply_gpus(machines: Sequence[Machine]) -> int:
    """GPUs that are there or on their way, without those on their way out."""
    return sum(units(m) for m in machines if m.phase in COUNTS_AS_SUPPLY and not m.removal and not m.failure)


def units(machine: Machine) -> int:
    """What a machine counts towards a target: its GPUs; one for a CPU-only machine."""
    return machine.gpus or 1


def scale_steps(
    desired: Desired, pool: Pool, machines: Sequence[Machine], snapshot: Snapshot, world: World
) -> Iterator[Step]:
    """The steps that bring one pool to its target. `machines` are this pool's, all that are not GONE."""
    target = desired.targets.get(pool.name)
    if target is None:
        return
    missing = target.gpus - supply_gpus(machines)
    if missing > 0:
        yield from _grow(desired, pool, target, missing, machines, snapshot, world)
    elif missing < 0:
        yield from _shrink(-missing, machines, world, target)


def _grow(
    desired: Desired,
    pool: Pool,
    target: Target,
    missing: int,
    machines: Sequence[Machine],
    snapshot: Snapshot,
    world: World,
) -> Iterator[Step]:
    for machine in machines:
        returnable = machine.phase is Phase.DRAINING and machine.removal == "surplus" and not machine.left_slurm
        if missing > 0 and returnable and not machine.failure and machine.slurmd_started:
            yield KeepAfterAll(machine.name, f"{target.gpus} GPUs are wanted again")
            missing -= units(machine)
    if missing <= 0:
        return
    per_node = max(pool.gpus_per_node, 1)
    ours = {m.tailnet_ip for m in machines}
    taken = {m.slot for m in machines if m.phase in HOLDS_SLOT}
    # A line in force that is none of ours stands for a machine that the journal does not know yet, or not any more.
    taken |= {slot for slot, address in world.published.items() if address not in ours}  # type: ignore[misc]
    free = [s for s in (slot_name(pool.name, i) for i in range(1, pool.max_nodes + 1)) if s not in taken]
    count = ceil(missing / per_node)
    if count > len(free):
        yield Warn(
            pool.name,
            f"{target.gpus} GPUs are wanted, but the pool has at most {pool.max_nodes} nodes "
            f"of {per_node}; {len(free)} slots are free",
            f"raise pools.{pool.name}.max_nodes",
        )
    if world.dead_key:
        yield Warn(pool.name, f"no new machines: {world.dead_key}", "put a new reusable key in place")
        return
    block = desired.blocks.get(f"pool:{pool.name}")
    if block is not None and block.until > world.now:
        yield Warn(
            pool.name,
            f"no new machines until {block.until:%H:%M:%S} UTC: {block.reason}",
            "mend the cause (see `meshctl events`); `meshctl scale` to the same number lifts this at once",
        )
        return
    offers = [o for listing in snapshot.offers.values() if isinstance(listing, Fresh) for o in listing.value]
    best = ranked(offers, pool, target, desired.blocks, world.now)
    if not best:
        yield Warn(pool.name, f"no offer will do: {why_none(offers, pool, target, desired.blocks, world.now)}")
        return
    for slot in free[:count]:
        offer = best[0]
        yield RequestMachine(slot, f"{target.gpus} GPUs are wanted, {missing} more are needed", pool.name, offer)
        missing -= per_node


def _shrink(surplus: int, machines: Sequence[Machine], world: World, target: Target) -> Iterator[Step]:
    """Machines that do not work yet go first, then idle ones, then those with jobs, which are waited for."""
    candidates = [m for m in machines if m.phase in COUNTS_AS_SUPPLY and not m.removal and not m.failure]
    if world.slurm is None:
        candidates = [m for m in candidates if m.phase is not Phase.READY]  # who is idle is not known
    order = {phase: index for index, phase in enumerate(_EARLIEST_FIRST)}
    candidates.sort(key=lambda m: (order[m.phase], not world.idle(m), -m.created_at.timestamp(), m.name))
    for machine in candidates:
        if units(machine) <= surplus:
            surplus -= units(machine)
            jobs = world.jobs.get(machine.slot, ()) if machine.phase is Phase.READY else ()
            wait = f"; it waits for job {', '.join(jobs)}" if jobs else ""
            yield Remove(machine.name, f"{target.gpus} GPUs are wanted{wait}")
