"""How much may be rented now within the budget, and what happens at its limits. PURE.

Nothing is rented past a limit. For the limit of an hour, the prices of all machines together count. For a day and a
month, what is spent counts, and what each machine costs at least from now on: until the least time is over that it is
paid for. Machines that exist go on: a limit ends none, except by `kill_at`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from meshd.model.budget import ALL, MICROS, Budget, BudgetLimits, Charge, Period, cost_micros
from meshd.model.desired import Desired, Target
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.plan import Move, Remove, Step
from meshd.plan.cover import micros
from meshd.plan.placement import total_limit
from meshd.plan.plan_input import PlanInput
from meshd.provider_api import Offer


@dataclass(frozen=True, slots=True)
class Used:
    """How far a limit is used.

    Attributes:
        scope: the pool; "" over all pools.
        limit: in millionths of a USD; of an hour, per hour.
        spent: what is spent, or costs per hour, now.
        ahead: what the machines that exist cost from now on at least; 0 for an hour.
        until: when it begins again; None: when machines are gone.
    """

    scope: str
    period: Period
    limit: int
    spent: int
    ahead: int
    until: datetime | None

    @property
    def left(self) -> int:
        """What may be spent, in millionths of a USD; of an hour, per hour. Below 0 when the limit is passed."""
        return self.limit - self.spent - self.ahead

    @property
    def setting(self) -> str:
        """The key of the limit in the settings."""
        return f"{f'pools.{self.scope}.' if self.scope else ''}budget.usd_per_{self.period.value}"

    @property
    def words(self) -> str:
        """The limit and how far it is used, for people."""
        whose = f" of pool {self.scope}" if self.scope else ""
        limit = self.limit / MICROS
        if self.until is None:
            return f"the budget{whose} allows {limit:.2f} USD per hour, and the machines cost {self.spent / MICROS:.2f}"
        ahead = f", and {self.ahead / MICROS:.2f} more are promised" if self.ahead else ""
        return (
            f"the budget{whose} allows {limit:.2f} USD a {self.period.value}, {self.spent / MICROS:.2f} are "
            f"spent{ahead}; the next {self.period.value} begins on {self.until:%Y-%m-%d} at 00:00 UTC"
        )


@dataclass(frozen=True, slots=True)
class BudgetRoom:
    """What new machines may cost.

    Attributes:
        usd_per_hour: together, when all of them are ordered now.
        binding: the limit that allows the least.
    """

    usd_per_hour: float
    binding: Used


def used(budget: Budget, now: datetime) -> Iterator[Used]:
    """Every limit that is set, and how far it is used."""
    for scope, limits in budget.limits.items():
        yield from _used(budget, scope, limits, now)


def _used(budget: Budget, scope: str, limits: BudgetLimits, now: datetime) -> Iterator[Used]:
    charges = [one for one in budget.charges if scope in (ALL, one.pool)]
    for period in Period:
        limit = limits.of(period)
        if limit is None:
            continue
        if period is Period.HOUR:
            rate = sum(one.micros_per_hour for one in charges)
            yield Used(scope, period, micros(limit), rate, 0, None)
            continue
        at = budget.at or now
        # After the day or month has changed, what was spent before it does not count.
        same = period.since(at) == period.since(now)
        found = budget.spent.get(scope)
        spent = found.of(period) if found is not None and same else 0
        yield Used(scope, period, micros(limit), spent, sum(one.ahead(now) for one in charges), period.until(now))


def room(budget: Budget, pool: str, providers: Collection[str], now: datetime) -> BudgetRoom | None:
    """What new machines of a pool may cost per hour; None for no limit.

    Args:
        budget: limits, sums, and the machines that exist or will.
        pool: whose machines they would be.
        providers: that may rent them: the one whose machines are paid for longest counts.
        now: UTC.
    """
    least_h = max((budget.least_of(name) for name in providers), default=budget.least_of("")) / 3600
    found = [
        BudgetRoom(one.left / MICROS / (1.0 if one.period is Period.HOUR else least_h), one)
        for scope in (ALL, pool)
        if scope in budget.limits
        for one in _used(budget, scope, budget.limits[scope], now)
    ]
    return min(found, key=lambda one: one.usd_per_hour, default=None)


def charge_of(offer: Offer, pool: str, machine: str, budget: Budget, now: datetime) -> Charge:
    """What a machine adds that is to be ordered."""
    least_s = budget.least_of(offer.provider)
    return Charge(machine, pool, micros(offer.usd_per_hour), now, least_s, ordered=False)


def withdrawn(desired: Desired, machines: Sequence[Machine], now: datetime) -> Iterator[Move]:
    """The orders that are not sent, since a limit has been reached since they were decided. The oldest go first.

    A limit is lowered, or a machine is found that a cloud made although its call was refused. Orders for one job go
    together: it cannot start on a part of its nodes.
    """
    orders: dict[tuple[str, ...], list[Machine]] = {}
    for m in sorted(machines, key=lambda m: (m.created_at, m.name)):
        if m.phase is Phase.REQUESTED:
            orders.setdefault((m.pool, *m.for_jobs) if m.for_jobs else (m.name,), []).append(m)
    if not orders:
        return
    own = {one.machine: one for one in desired.budget.charges}
    budget = desired.budget.without(frozenset(m.name for order in orders.values() for m in order))
    costs: dict[str, int] = {}
    for m in machines:
        if m.phase not in {Phase.REQUESTED, Phase.GONE}:
            costs[m.pool] = costs.get(m.pool, 0) + micros(m.usd_per_hour)
    for order in orders.values():
        charges = [own.get(m.name) or charge_of(m.offer, m.pool, m.name, budget, now) for m in order]
        pool, beside = order[0].pool, budget.beside(*charges)
        cost = costs.get(pool, 0) + sum(micros(m.usd_per_hour) for m in order)
        over = next(
            (one.words for one in used(beside, now) if one.scope in (ALL, pool) and one.left < 0),
            _over_pools_limit(desired, order[0], cost),
        )
        if over:
            yield from (Move(m.name, f"nothing was rented: {over}", Phase.GONE) for m in order)
        else:
            budget, costs[pool] = beside, cost


def _over_pools_limit(desired: Desired, machine: Machine, cost: int) -> str:
    """The limit on all machines of its pool, when they cost more with it, for people; else "".

    `cost` is that of all of them, in millionths of a USD per hour.
    """
    pool = desired.pools.get(machine.pool)
    target = desired.target(pool) if pool is not None and not machine.by_queue else None
    limit = total_limit(pool, target or Target(pool.name, 0)) if pool is not None else None
    if limit is None or cost <= micros(limit):
        return ""
    return f"all machines of pool {machine.pool} may cost {limit:.2f} USD per hour, and would cost {cost / MICROS:.2f}"


def ended_by(budget: Budget, now: datetime) -> Iterator[Used]:
    """The limits whose `kill_at` is reached."""
    for one in used(budget, now):
        kill_at = budget.limits[one.scope].kill_at
        if kill_at is not None and one.period is not Period.HOUR and one.spent >= one.limit * kill_at:
            yield one


def kill_steps(budget: Budget, machines: Sequence[Machine], given: PlanInput) -> Iterator[Step]:
    """The machines to give back because `kill_at` is reached: first those without a job, then all."""
    for one in ended_by(budget, given.now):
        ours = [m for m in machines if one.scope in (ALL, m.pool) and m.phase is not Phase.GONE]
        staying = [m for m in ours if m.removal is not Removal.FORCED and m.phase not in _ENDING]
        idle = [m for m in staying if not m.may_run_jobs or given.idle(m)]
        for machine in idle or staying:
            kill_at = budget.limits[one.scope].kill_at
            yield Remove(machine.name, f"kill_at = {kill_at:g} is reached: {one.words}", Removal.FORCED)


def warned_of(budget: Budget, now: datetime) -> Iterator[Used]:
    """The limits that are used up to `warn_at` and more."""
    for one in used(budget, now):
        if one.spent >= one.limit * budget.limits[one.scope].warn_at:
            yield one


def too_small(budget: Budget, pool: str, offers: Iterable[Offer], now: datetime) -> Used | None:
    """The limit that does not even pay for the cheapest machine of these offers; None when each does."""
    offers = list(offers)
    empty = replace(budget, spent={}, charges=())
    for one in used(empty, now):
        least = min((_least_cost(offer, one, empty) for offer in offers), default=0)
        if one.scope in (ALL, pool) and least > one.limit:
            return one
    return None


def _least_cost(offer: Offer, one: Used, budget: Budget) -> int:
    price = micros(offer.usd_per_hour)
    return price if one.period is Period.HOUR else cost_micros(price, budget.least_of(offer.provider))


_ENDING = frozenset({Phase.TERMINATING, Phase.LOST, Phase.GONE})
