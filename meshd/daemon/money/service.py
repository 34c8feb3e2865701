"""Answers what was spent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from meshd.api import schema as s
from meshd.api.faults import Refused
from meshd.codes import RefusalCode
from meshd.daemon.money.uses import JobUses
from meshd.model.budget import ALL, MICROS, Budget, Period
from meshd.model.desired import Desired
from meshd.model.machine import COSTS_MONEY
from meshd.plan.budget import used
from meshd.plan.costs import CostBy, Row, costs, projected
from meshd.plan.cover import micros
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.store.ledger import Ledger

LONGEST_ROUNDING = timedelta(hours=1)
"""No cloud rounds a machine's time up by more."""


class CostService:
    """Answers COST.

    Args:
        ledger: what was spent.
        journal: the machines of now.
        uses: which jobs had them.
        desired: the budget.
        clock: time.
    """

    def __init__(
        self, ledger: Ledger, journal: Journal, uses: JobUses, desired: Callable[[], Desired], clock: Clock
    ) -> None:
        self._ledger = ledger
        self._journal = journal
        self._uses = uses
        self._desired = desired
        self._clock = clock

    async def cost(self, query: s.CostQuery) -> s.CostView:
        """What was spent in that time. Sums are made in a thread: a year may have many jobs.

        Raises:
            Refused: the time has no length.
        """
        by, now = CostBy(query.by), self._clock.now()
        since = query.since or Period.MONTH.since(now)
        until = min(query.until or now, now)
        if since >= until and query.until is not None:
            raise Refused("the time ends before it begins", "give --since before --until", code=RefusalCode.NO_TIME)
        # A machine that is over may be billed until a moment that is yet to come: its cloud has rounded its time up.
        end = until if query.until is not None and query.until < now else now + LONGEST_ROUNDING
        if by.of_jobs:
            await self._uses.read_now()
        uses = self._ledger.uses(since, end) if by.of_jobs else ()
        found = await asyncio.to_thread(costs, by, self._ledger.lives(since, end), uses, since, end, now)
        rate = sum(micros(m.usd_per_hour) for m in self._journal.machines() if m.phase in COSTS_MONEY)
        month = self._ledger.spent(now)[ALL].month
        records = self._uses.by_records
        budget = self._desired().budget
        return s.CostView(
            at=now, by=query.by, since=since, until=until, rows=_rows(found.rows, by, query.limit),
            micro_usd=found.micros, usd=found.micros / MICROS, usd_per_hour=rate / MICROS, month_usd=month / MICROS,
            month_projected_usd=projected(month, rate, now) / MICROS, known_since=self._ledger.known_since(),
            jobs_by="" if records is None else "accounting" if records else "queue", jobs_read_at=self._uses.read_at,
            budget=budget_rows(budget, budget.at or now),  # both sums of one moment: a machine's second counts once
        )  # fmt: skip

    def usd_so_far(self, now: datetime) -> float:
        """What all machines have ever cost."""
        return sum(self._ledger.totals(now).values()) / MICROS


def budget_rows(budget: Budget, now: datetime) -> list[s.BudgetRow]:
    """Every limit, and how far it is used."""
    return [
        s.BudgetRow(
            pool=one.scope, period=one.period.value, limit_usd=one.limit / MICROS, spent_usd=one.spent / MICROS,
            promised_usd=one.ahead / MICROS, left_usd=max(0, one.left) / MICROS, until=one.until,
            reached=one.left <= 0,
        )
        for one in used(budget, now)
    ]  # fmt: skip


def _rows(rows: Sequence[Row], by: CostBy, limit: int) -> list[s.CostRow]:
    """The rows, and one for those beyond the limit: together they are the sum."""
    shown = [_row(row, by) for row in rows[:limit]]
    rest = rows[limit:]
    if rest:
        cost = sum(row.micros for row in rest)
        shown.append(
            s.CostRow(
                key="",
                kind="others",
                micro_usd=cost,
                usd=cost / MICROS,
                gpu_hours=round(sum(row.gpu_hours for row in rest), 4),
                machine_hours=round(sum(row.machine_hours for row in rest), 4),
                machines=len({name for row in rest for name in row.machines}),
            )
        )
    return shown


def _row(row: Row, by: CostBy) -> s.CostRow:
    return s.CostRow(
        key=row.key, kind="one" if row.key or not by.of_jobs else "idle", micro_usd=row.micros,
        usd=row.micros / MICROS, gpu_hours=round(row.gpu_hours, 4), machine_hours=round(row.machine_hours, 4),
        machines=len(row.machines), user=row.user, account=row.account, name=row.name,
    )  # fmt: skip
