"""What was spent, summed up by pool, provider, machine, day, user, account or job. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from meshd.model.budget import Period
from meshd.model.ledger import JobUse, Life
from meshd.plan.ledger import Share, shares

HOUR = timedelta(hours=1)


class CostBy(StrEnum):
    """What a row of costs is about."""

    POOL = "pool"
    PROVIDER = "provider"
    MACHINE = "machine"
    DAY = "day"
    USER = "user"
    ACCOUNT = "account"
    JOB = "job"

    @property
    def of_jobs(self) -> bool:
        """Whether it asks who used the machines."""
        return self in {CostBy.USER, CostBy.ACCOUNT, CostBy.JOB}


@dataclass(slots=True)
class Row:
    """One row.

    Attributes:
        key: the pool, provider, machine, day, user, account or job; "" where no job used the machines.
        micros: in millionths of a USD.
        gpu_hours, machine_hours: for `of_jobs`, those that the jobs had: a part of a machine counts as a part.
        user, account, name: of a job.
        machines: how many machines it is about.
    """

    key: str
    micros: int = 0
    gpu_hours: float = 0.0
    machine_hours: float = 0.0
    user: str = ""
    account: str = ""
    name: str = ""
    machines: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Costs:
    """What was spent.

    Attributes:
        rows: the dearest first; days in their order.
        micros: the sum of all rows, exactly.
    """

    rows: tuple[Row, ...]
    micros: int


def costs(
    by: CostBy, lives: Sequence[Life], uses: Iterable[JobUse], start: datetime, end: datetime, now: datetime
) -> Costs:
    """Sum up what machines cost between `start` and `end`.

    Args:
        by: what a row is about.
        lives: of machines.
        uses: of jobs; they matter only where `by.of_jobs`.
        start: UTC.
        end: UTC.
        now: UTC: what goes on costs until now.
    """
    rows: dict[str, Row] = {}
    for share in _by_day(shares(lives, uses if by.of_jobs else (), start, end, now), by):
        key = _key(by, share)
        row = rows.setdefault(key, Row(key))
        hours = (share.end - share.start) / HOUR
        row.micros += share.micros
        row.machines.add(share.life.machine)
        use = share.use
        whole = share.life.cost(share.start, share.end)
        part = share.micros / whole if whole and by.of_jobs else 1.0
        row.machine_hours += hours * part
        row.gpu_hours += hours * (share.life.gpus * part if use is None else use.gpus)
        if use is not None and by is CostBy.JOB:
            row.user, row.account, row.name = use.user, use.account, use.name
    ordered = sorted(rows.values(), key=lambda row: (0 if by is CostBy.DAY else -row.micros, row.key))
    return Costs(tuple(ordered), sum(row.micros for row in ordered))


def _key(by: CostBy, share: Share) -> str:
    use = share.use
    found = {
        CostBy.POOL: share.life.pool,
        CostBy.PROVIDER: share.life.provider,
        CostBy.MACHINE: share.life.machine,
        CostBy.DAY: f"{share.start:%Y-%m-%d}",
        CostBy.USER: use.user if use else "",
        CostBy.ACCOUNT: (use.account or "-") if use else "",
        CostBy.JOB: use.job if use else "",
    }
    return found[by]


def _by_day(found: Iterable[Share], by: CostBy) -> Iterator[Share]:
    """The shares, cut at midnight where days are asked for."""
    for share in found:
        if by is not CostBy.DAY:
            yield share
            continue
        start = share.start
        while start < share.end:
            end = min(share.end, Period.DAY.until(start) or share.end)
            yield Share(share.life, share.use, start, end, share.life.cost(start, end))
            start = end


def projected(spent: int, micros_per_hour: int, now: datetime) -> int:
    """What the month will have cost when the machines of now go on until its end, in millionths of a USD."""
    until = Period.MONTH.until(now) or now
    return spent + round(micros_per_hour * ((until - now) / HOUR))
