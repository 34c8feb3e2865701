"""Rents or gives back machines so that each pool reaches its target. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import COUNTS_AS_SUPPLY, Machine, Phase, Removal
from meshd.model.observed import Snapshot
from meshd.model.plan import CancelRemoval, Remove, Step
from meshd.plan.cover import units as offer_units
from meshd.plan.fitness import unfit
from meshd.plan.gang import group_of, groups_of, is_gang
from meshd.plan.grow import Growth
from meshd.plan.hosts import NONE_BOUND, Bound
from meshd.plan.liveness import in_doubt
from meshd.plan.placement import amount, overshoot_most
from meshd.plan.plan_input import PlanInput
from meshd.plan.room import Money

_EARLIEST_FIRST = (
    Phase.REQUESTED,
    Phase.LAUNCHING,
    Phase.BOOTING,
    Phase.JOINING,
    Phase.CONFIGURING,
    Phase.TESTING,
    Phase.READY,
)


def supply(machines: Sequence[Machine]) -> list[Machine]:
    """The machines that count towards a target: those that work or are on their way, and stay.

    One that its cloud takes back soon does not count, so another is rented while it still runs.
    """
    return [m for m in machines if m.phase in COUNTS_AS_SUPPLY and not (m.removal or m.failure or m.preempted_at)]


def supply_gpus(machines: Sequence[Machine]) -> int:
    """The units of the machines that count towards a target."""
    return sum(units(m) for m in supply(machines))


def units(machine: Machine) -> int:
    """What a machine counts towards a target: its GPUs; one for a CPU-only machine."""
    return offer_units(machine.offer)


@dataclass(frozen=True, slots=True)
class Beside:
    """What demand brings to a pool in the same plan. A target is a floor, so it counts as well.

    Attributes:
        kept: machines that were to be given back, and that stay for jobs.
        removed: machines that are given back since their jobs are gone.
        slots: those that jobs have or wait for; they are not for a target's machines.
        units: those of the machines that are rented for jobs.
        closed: slots that a person drained; they are not for a target's machines either.
    """

    kept: tuple[Machine, ...] = ()
    removed: tuple[Machine, ...] = ()
    slots: frozenset[str] = frozenset()
    units: int = 0
    closed: frozenset[str] = frozenset()

    def staying(self, machines: Sequence[Machine]) -> list[Machine]:
        """The machines that count as supply and stay, in this plan too."""
        return [*(m for m in supply(machines) if m not in self.removed), *self.kept]


NOTHING_BESIDE = Beside()


def growth_of(
    desired: Desired,
    pool: Pool,
    machines: Sequence[Machine],
    snapshot: Snapshot,
    given: PlanInput,
    money: Money | None = None,
    beside: Beside = NOTHING_BESIDE,
) -> Growth | None:
    """What the pool must rent for its target, beyond its supply and the removals that it cancels; None for nothing."""
    target, have = desired.target(pool), beside.staying(machines)
    if target is None:
        return None
    missing = target.gpus - sum(map(units, have)) - beside.units
    kept = removals_to_cancel(pool, target, missing, machines, given, beside) if missing > 0 else []
    missing -= sum(units(m) for m in kept)
    if missing <= 0:
        return None
    money = money or Money(desired.budget, given.now)
    return Growth(
        desired, pool, target, missing, machines, [*have, *kept], snapshot, given, money, beside.slots | beside.closed
    )  # fmt: skip


def scale_steps(
    desired: Desired,
    pool: Pool,
    machines: Sequence[Machine],
    snapshot: Snapshot,
    given: PlanInput,
    money: Money,
    beside: Beside = NOTHING_BESIDE,
    owned: Bound = NONE_BOUND,
) -> Iterator[Step]:
    """The steps that bring one pool to its target.

    Args:
        desired: its target.
        pool: the pool.
        machines: those of the pool that are not GONE.
        snapshot: the offers.
        given: the observed state.
        money: what the plan may still spend.
        beside: what the plan does for jobs.
        owned: the slots of hosts.
    """
    target = desired.target(pool)
    if target is None:
        return
    have = beside.staying(machines)
    missing = target.gpus - sum(map(units, have)) - beside.units
    if missing > 0:
        kept = removals_to_cancel(pool, target, missing, machines, given, beside)
        for machine in kept:
            yield CancelRemoval(machine.name, f"{amount(target.gpus, pool)} wanted again")
        left, why = missing - sum(units(m) for m in kept), f"{amount(target.gpus, pool)} wanted"
        woken = list(owned.requests(pool, target, left, why, money, beside.slots))
        yield from woken
        beside = replace(beside, units=beside.units + sum(offer_units(step.offer) for step in woken))
    growth = growth_of(desired, pool, machines, snapshot, given, money, beside)
    if growth is not None:
        yield from growth.steps()
    elif missing < 0 and pool.name in desired.targets:  # `min_gpus` alone gives nothing back
        yield from _shrink(-missing, have, given, pool, target, beside)


def removals_to_cancel(
    pool: Pool,
    target: Target,
    missing: int,
    machines: Sequence[Machine],
    given: PlanInput,
    beside: Beside = NOTHING_BESIDE,
) -> list[Machine]:
    """The machines of a scale-down that the pool needs again and that have not left Slurm; never more than needed.

    Those with jobs come first, then the oldest. A machine with more units than are missing comes only after all that
    fit, and only if the overshoot allows it.
    """
    able = sorted(
        (
            m
            for m in machines
            if m.removal is Removal.SCALE_DOWN and not m.failure and _can_stay(m, given) and m not in beside.kept
        ),
        key=lambda m: (not (given.jobs.get(m.slot) or given.configuring_jobs.get(m.slot)), m.created_at, m.name),
    )
    chosen = _Kept(pool, target, missing, supply(machines))
    for machine in able:
        if units(machine) <= chosen.missing:
            chosen.keep(machine)
    for machine in sorted(able, key=units):
        chosen.keep(machine)
    return chosen.machines


def _can_stay(machine: Machine, given: PlanInput) -> bool:
    if machine.preempted_at is not None:
        return False
    if machine.phase is Phase.DRAINING:
        node = given.slurm.nodes.get(machine.slot) if given.slurm else None
        off = node is not None and node.cloud and node.leaves_power
        return machine.slurmd_started and not machine.left_slurm and not off
    return machine.phase in COUNTS_AS_SUPPLY


class _Kept:
    """The choice so far: the units that are still missing, and the machines."""

    def __init__(self, pool: Pool, target: Target, missing: int, there: list[Machine]) -> None:
        self.missing = missing
        self.machines: list[Machine] = []
        self._pool, self._target, self._there = pool, target, there

    def keep(self, machine: Machine) -> None:
        """Keep one more machine if units are missing, it has not too many, and it is in its gang's place."""
        most = overshoot_most(self._pool, self._target)
        too_much = most is not None and units(machine) > self.missing + most
        if self.missing <= 0 or too_much or machine in self.machines:
            return
        here = groups_of([*self._there, *self.machines], self._target)
        if is_gang(self._pool, self._target) and len(here) == 1 and group_of(machine.offer) not in here:
            return
        self.machines.append(machine)
        self.missing -= units(machine)


def _broken(machine: Machine, given: PlanInput) -> bool:
    found = unfit(machine, given.view)
    return found is not None and not found.deliberate


def _shrink(
    surplus: int, have: list[Machine], given: PlanInput, pool: Pool, target: Target, beside: Beside
) -> Iterator[Step]:
    """Give back: first unfit nodes without a job, then machines that are not READY, idle ones, and those with jobs.

    Among those with jobs the unfit ones go first; their jobs are waited for. Of equal ones the dearest goes first, then
    the newest. A node that a person drained counts like any other.

    In a pool that Slurm's queue drives, a machine on its way to a slot that a job waits for stays. Machines that were
    rented for jobs go only if they are idle and older than the target: the others leave when they are idle. Those of
    the target do not go because of them: a pool keeps as many as its target says beside the queue's. Machines of hosts
    that never sleep stay.

    While some machines may have ended unseen, the others have to be as many as the target says.
    """
    if target.gpus > 0:
        doubtful = [m for m in have if in_doubt(m, given)]
        surplus -= sum(map(units, doubtful))
        have = [m for m in have if m not in doubtful]
    if given.slurm is None:
        have = [m for m in have if m.phase is not Phase.READY]  # which ones are idle is not known
    order = {phase: index for index, phase in enumerate(_EARLIEST_FIRST)}
    have.sort(
        key=lambda m: (
            not (_broken(m, given) and given.idle(m)), order[m.phase], not given.idle(m), not _broken(m, given),
            -m.usd_per_hour, -m.created_at.timestamp(), m.name
        )
    )  # fmt: skip
    of_target = surplus
    if pool.from_queue:
        of_target = sum(units(m) for m in have if not m.by_queue) - target.gpus
    have = [m for m in have if not m.offer.standing]
    for machine in have:
        by_queue = machine.by_queue and pool.from_queue
        if (by_queue and not _is_left_over(machine, target, given)) or _is_waited_for(machine, pool, given, beside):
            continue
        if units(machine) <= min(surplus, surplus if by_queue else of_target):
            surplus -= units(machine)
            of_target -= 0 if by_queue else units(machine)
            jobs = given.jobs.get(machine.slot, ()) if machine.phase is Phase.READY else ()
            wait = f"; it waits for job {', '.join(jobs)}" if jobs else ""
            yield Remove(machine.name, f"{amount(target.gpus, pool)} wanted{wait}")


def _is_waited_for(machine: Machine, pool: Pool, given: PlanInput, beside: Beside) -> bool:
    """Whether a machine is on its way to a slot that a job has."""
    has_job = machine.phase is not Phase.READY and bool(given.configuring_jobs.get(machine.slot))
    return pool.from_queue and (has_job or machine.slot in beside.slots)


def _is_left_over(machine: Machine, target: Target, given: PlanInput) -> bool:
    """Whether a machine that was rented for a job is idle, and was there when somebody set the target."""
    older = target.at is not None and machine.created_at < target.at
    return machine.phase is Phase.READY and older and given.idle(machine)
