"""What is billed for a machine, by its record; and who used it. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from meshd.model.budget import ALL, Budget, BudgetLimits, Charge, Period, Spent
from meshd.model.ledger import ENDS_WITHIN, JobUse, Life
from meshd.model.machine import Machine, Phase
from meshd.plan.cover import micros
from meshd.provider_api import ProviderCapabilities

_NEVER_BILLED = frozenset({Phase.REQUESTED})


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a cloud rounds a machine's time up in its bill, in seconds."""

    increment_s: float = 1.0
    minimum_s: float = 0.0


def rounding_of(capabilities: ProviderCapabilities) -> Rounding:
    """How a provider rounds."""
    return Rounding(capabilities.billing_increment_s, capabilities.billing_minimum_s)


def billed_since(machine: Machine) -> datetime:
    """From when a machine is billed: its cloud's own launch time, or the first create call that may have made it."""
    return machine.launched_at or machine.launch_first_called_at or machine.launch_called_at or machine.created_at


def lives_of(machine: Machine, known: Sequence[Life], rounding: Rounding, now: datetime) -> tuple[Life, ...]:
    """The lives of a machine in the ledger, after its record has changed. Safe to repeat.

    A machine that no cloud has made has none. While that is not clear it has one.

    Args:
        machine: its record.
        known: its lives as the ledger has them, in order.
        rounding: of its cloud.
        now: UTC: when a price changed that the record has and the ledger has not.
    """
    shown = bool(machine.instance_id) or machine.head_reached_at is not None
    if machine.phase in _NEVER_BILLED or (machine.phase is Phase.GONE and not shown):
        return ()
    asked_at = known[-1].end_asked_at if known and known[-1].end_asked_at else machine.terminate_called_at
    price = micros(machine.usd_per_hour)
    first = _life(machine, price, shown=shown, rounding=rounding)
    lives = list(known)
    if not lives or (len(lives) == 1 and lives[0].micros_per_hour == price):
        lives = [first]
    elif lives[-1].micros_per_hour != price:
        changed = max(now, lives[-1].since)
        lives[-1] = replace(lives[-1], until=changed, end_asked_at=None, increment_s=0.0, minimum_s=0.0)
        lives.append(replace(first, since=changed, part=len(lives), minimum_s=0.0))
    lives[-1] = replace(lives[-1], end_asked_at=asked_at, until=None, shown=shown, instance_id=machine.instance_id)
    if machine.phase is Phase.GONE:
        lives[-1] = replace(lives[-1], until=_ended_at(lives[-1], machine.gone_at or machine.phase_since))
    return tuple(lives)


def _life(machine: Machine, price: int, *, shown: bool, rounding: Rounding) -> Life:
    return Life(
        machine=machine.name, pool=machine.pool, slot=machine.slot, provider=machine.provider,
        region=machine.region or machine.offer.region, instance_type=machine.offer.instance_type,
        instance_id=machine.instance_id, spot=machine.offer.spot, gpus=machine.offer.gpus, vcpus=machine.offer.vcpus,
        micros_per_hour=price, since=billed_since(machine), shown=shown,
        increment_s=rounding.increment_s, minimum_s=rounding.minimum_s,
    )  # fmt: skip


def _ended_at(life: Life, gone_at: datetime) -> datetime:
    asked_at = life.end_asked_at
    ended = asked_at if asked_at is not None and gone_at - asked_at <= ENDS_WITHIN else gone_at
    return max(life.since, min(ended, gone_at))


def spent(lives: Iterable[Life], now: datetime) -> dict[str, Spent]:
    """What each pool, and all together ("") have cost in the day and the month of `now`, until now."""
    day, month = Period.DAY.since(now), Period.MONTH.since(now)
    sums: dict[str, list[int]] = {ALL: [0, 0]}
    for life in lives:
        end = life.billed_until(now)
        today, this_month = life.cost(day, end), life.cost(month, end)
        for scope in (ALL, life.pool):
            found = sums.setdefault(scope, [0, 0])
            found[0] += today
            found[1] += this_month
    return {scope: Spent(*found) for scope, found in sums.items()}


def added(one: Mapping[str, Spent], other: Mapping[str, Spent]) -> dict[str, Spent]:
    """Both sums together."""
    none = Spent()
    return {
        scope: Spent(
            one.get(scope, none).day + other.get(scope, none).day,
            one.get(scope, none).month + other.get(scope, none).month,
        )
        for scope in {**one, **other}
    }


def budget_of(
    limits: Mapping[str, BudgetLimits],
    sums: Mapping[str, Spent],
    machines: Iterable[Machine],
    minimum_s: Mapping[str, float],
    now: datetime,
) -> Budget:
    """Everything that decides whether another machine may be rented.

    Args:
        limits: by scope.
        sums: what is spent, by scope.
        machines: those that are not GONE.
        minimum_s: by provider, the least time that a machine is paid for.
        now: UTC.
    """
    if not limits:
        return Budget()
    empty = Budget(limits=limits, spent=sums, at=now, least_s=minimum_s)
    charges = tuple(
        Charge(
            m.name, m.pool, micros(m.usd_per_hour), billed_since(m), empty.least_of(m.provider),
            ordered=m.phase is not Phase.REQUESTED,
        )
        for m in machines
        if m.phase is not Phase.GONE
    )  # fmt: skip
    return replace(empty, charges=charges)


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a machine's cost.

    Attributes:
        use: the job that had the machine; None: no job did.
        start, end: the part of the machine's life.
        micros: the cost, in millionths of a USD.
    """

    life: Life
    use: JobUse | None
    start: datetime
    end: datetime
    micros: int


def shares(
    lives: Sequence[Life], uses: Iterable[JobUse], start: datetime, end: datetime, now: datetime
) -> Iterator[Share]:
    """Who used what of the machines between `start` and `end`. All parts add up to the machines' cost, exactly.

    A job pays for the part of the machine that it had: by its GPUs, or by its CPUs where the machine or the job has
    no GPUs. What no job had is nobody's. Jobs that together have more than the whole share it.
    """
    of_life = _by_life(lives, uses)
    for life in lives:
        begin, over = max(start, life.since), min(end, life.billed_until(now))
        if begin >= over:
            continue
        mine = [(use, max(begin, use.since), min(over, use.until or now)) for use in of_life.get(_key(life), ())]
        mine = [one for one in mine if one[1] < one[2]]
        yield from _swept(life, mine, begin, over)


def _swept(
    life: Life, uses: Sequence[tuple[JobUse, datetime, datetime]], begin: datetime, over: datetime
) -> Iterator[Share]:
    """The shares of one life, from one begin or end of a use to the next."""
    changes: dict[datetime, list[int]] = {begin: [], over: []}
    for index, (_, since, until) in enumerate(uses):
        changes.setdefault(since, []).append(index)
        changes.setdefault(until, []).append(index)
    there: set[int] = set()
    for left, right in pairwise(sorted(changes)):
        there ^= set(changes[left])
        yield from _split(life, [uses[index][0] for index in sorted(there)], left, right)


def _split(life: Life, uses: Sequence[JobUse], left: datetime, right: datetime) -> Iterator[Share]:
    whole = life.cost(left, right)
    parts = [_parts_of(life, use) for use in uses]
    total = max(sum(parts), WHOLE)
    given = 0
    for use, part in zip(uses, parts, strict=True):
        cost = whole * part // total
        given += cost
        yield Share(life, use, left, right, cost)
    if whole > given or not uses:
        if sum(parts) >= WHOLE and uses:
            yield Share(life, uses[0], left, right, whole - given)  # rounding
        else:
            yield Share(life, None, left, right, whole - given)


WHOLE = 1_000_000
"""A whole machine, as a sum of parts."""


def _parts_of(life: Life, use: JobUse) -> int:
    if life.gpus and use.gpus:
        return min(WHOLE, WHOLE * use.gpus // life.gpus)
    if use.cpus and life.vcpus:
        return min(WHOLE, WHOLE * use.cpus // life.vcpus)
    return WHOLE


def _key(life: Life) -> tuple[str, int]:
    return life.machine, life.part


def _by_life(lives: Sequence[Life], uses: Iterable[JobUse]) -> dict[tuple[str, int], list[JobUse]]:
    """The uses of each life: of the newest machine of the slot that was there when the job began."""
    by_slot: dict[str, list[Life]] = {}
    for life in sorted(lives, key=lambda one: (one.since, one.machine, one.part)):
        by_slot.setdefault(life.slot, []).append(life)
    found: dict[tuple[str, int], list[JobUse]] = {}
    for use in sorted(uses, key=lambda one: (one.since, one.job)):
        before = [life for life in by_slot.get(use.slot, ()) if life.since <= use.since]
        if before:
            for life in by_slot[use.slot]:
                if life.machine == before[-1].machine:
                    found.setdefault(_key(life), []).append(use)
    return found
