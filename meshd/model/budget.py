"""What may be spent, and what is spent: the limits, the sums of the ledger, and what the machines that exist cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

MICROS = 1_000_000
"""Money is counted in whole millionths of a USD, so that sums do not depend on their order."""

USD_MAX = 1e9
"""The most that a setting or an order may name: sums of it are still exact."""

ALL = ""
"""The scope of the budget over all pools; other scopes are the names of pools."""

LEAST_S = 600.0
"""A new machine is paid for at least this long: with less it would be given back before it has booted."""


class Period(StrEnum):
    """What a limit counts. Days and months are those of UTC."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"

    def since(self, at: datetime) -> datetime:
        """When the day or month began that `at` is in; `at` itself for an hour, whose limit is a rate."""
        midnight = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return {Period.HOUR: at, Period.DAY: midnight, Period.MONTH: midnight.replace(day=1)}[self]

    def until(self, at: datetime) -> datetime | None:
        """When the next day or month begins; None for an hour, whose limit is a rate and never begins again."""
        if self is Period.HOUR:
            return None
        begun = self.since(at)
        if self is Period.DAY:
            return begun + timedelta(days=1)
        return (begun + timedelta(days=32)).replace(day=1)


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """The limits of one scope. None: no limit.

    Attributes:
        usd_per_hour: for what all machines cost per hour together.
        usd_per_day, usd_per_month: for what is spent in a day or month.
        warn_at: the fraction of a limit from which on a problem is shown.
        kill_at: the fraction of the limit of a day or month at which all machines are given back, jobs or not.
    """

    usd_per_hour: float | None = None
    usd_per_day: float | None = None
    usd_per_month: float | None = None
    warn_at: float = 0.8
    kill_at: float | None = None

    def of(self, period: Period) -> float | None:
        """The limit of a period, in USD."""
        limits = {Period.HOUR: self.usd_per_hour, Period.DAY: self.usd_per_day, Period.MONTH: self.usd_per_month}
        return limits[period]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a scope has cost in the present day and month until now, in millionths of a USD."""

    day: int = 0
    month: int = 0

    def of(self, period: Period) -> int:
        """The sum of a day or a month."""
        return self.month if period is Period.MONTH else self.day


@dataclass(frozen=True, slots=True)
class Charge:
    """A machine that costs money now, or will once it is ordered.

    Attributes:
        since: from when it is billed; now, for one that is not ordered yet.
        least_s: the least time that it is paid for.
        ordered: a create call was made.
    """

    machine: str
    pool: str
    micros_per_hour: int
    since: datetime
    least_s: float = LEAST_S
    ordered: bool = True

    def ahead(self, now: datetime) -> int:
        """What it costs from now on at least, in millionths of a USD."""
        left_s = self.least_s if not self.ordered else (self.since - now).total_seconds() + self.least_s
        return cost_micros(self.micros_per_hour, max(0.0, left_s))


def cost_micros(micros_per_hour: int, seconds: float) -> int:
    """The cost of a number of seconds, rounded down to a millionth of a USD, as the ledger does.

    So machines that fit into what is left do not exceed it by their rounding, and are not withdrawn again.
    """
    return micros_per_hour * round(seconds * MICROS) // (3600 * MICROS)


@dataclass(frozen=True, slots=True)
class Budget:
    """Everything that decides whether another machine may be rented.

    Attributes:
        limits: by scope.
        spent: by scope; the day and the month of `at`.
        at: when that was summed up.
        charges: the machines that cost money now, and those that are to be ordered.
        least_s: by provider, the least time that a machine is paid for.
    """

    limits: Mapping[str, BudgetLimits] = field(default_factory=dict)
    spent: Mapping[str, Spent] = field(default_factory=dict)
    at: datetime | None = None
    charges: tuple[Charge, ...] = ()
    least_s: Mapping[str, float] = field(default_factory=dict)

    def least_of(self, provider: str) -> float:
        """The least time that a new machine of a provider is paid for, in seconds."""
        return max(LEAST_S, self.least_s.get(provider, 0.0))

    def beside(self, *charges: Charge) -> Budget:
        """The budget when these are ordered too."""
        return replace(self, charges=(*self.charges, *charges)) if charges else self

    def without(self, machines: frozenset[str]) -> Budget:
        """The budget when these machines are gone. What they have cost stays spent."""
        return replace(self, charges=tuple(one for one in self.charges if one.machine not in machines))
