"""Writes down which jobs had which machines, counts what they cost, and forgets what is old."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ClassVar, Protocol

import structlog

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.controller import Controller
from meshd.daemon.reporting import problem
from meshd.errors import SlurmError, StoreError
from meshd.model.ledger import JobUse
from meshd.plan.ledger import shares
from meshd.runtime.clock import Clock
from meshd.slurm.job_records import JobRecords
from meshd.store.ledger import Ledger
from meshd.store.ledger_copy import LedgerCopy

log = structlog.get_logger(__name__)

RECORDS_EVERY_S = 60.0
"""slurmdbd keeps its records, and is not asked more often than it needs to be."""
READ_EVERY_S = 20.0
"""Often enough for slurmctld's memory of a job that has ended (MinJobAge, 300 s by default) and for the counters."""
FRESH_S = 5.0
"""Who asks for costs gets a reading that is at most so old: everybody may ask."""
COUNTED_AFTER = timedelta(seconds=120)
"""What a job has cost is counted so much later, when the end of its use is known."""
PRUNED_EVERY = timedelta(days=1)
USERS_MAX = 500
"""The most different users and accounts in the counters; further ones are summed up under "others"."""


class RecordReader(Protocol):
    """Reads which jobs had which nodes."""

    async def read(self, since: datetime, *, records: bool) -> JobRecords:
        """What jobs have, and had since then. Raises SlurmError."""
        ...


class RecordsKept(Protocol):
    """Knows whether Slurm keeps records of jobs."""

    async def keeps_records(self) -> bool:
        """Whether slurmctld has slurmdbd. Raises SlurmError."""
        ...


class JobUses(Controller):
    """Follows the jobs.

    Args:
        ledger: where they are written.
        reader: reads them.
        slurm: tells whether there are records.
        copy: the copy of the ledger; None: there is none.
        clock: time.

    Attributes:
        by_records: the last reading was of Slurm's records; None before the first one.
        read_at: when that reading was; None before the first one.
    """

    name: ClassVar[str] = "job uses"

    def __init__(
        self, ledger: Ledger, reader: RecordReader, slurm: RecordsKept, clock: Clock, copy: LedgerCopy | None = None
    ) -> None:
        super().__init__(clock)
        self._copy = copy
        self._ledger = ledger
        self._reader = reader
        self._slurm = slurm
        self.read_at: datetime | None = None
        self._pruned_at: datetime | None = None
        self._known: dict[tuple[str, str, datetime], JobUse] = {}
        self._reading = asyncio.Lock()
        self._problem = ""
        self.by_records: bool | None = None

    def problems(self) -> Iterable[ProblemView]:
        """That the copy cannot be kept. That Slurm cannot be read, or slurmdbd is away, others tell."""
        if self._copy is not None and self._copy.problem:
            cure = "free the disk, or give the file to SlurmUser: without it a lost journal begins the month's sum at 0"
            yield problem(ProblemCode.LEDGER_NOT_COPIED, "warning", self._copy.problem, cure)

    async def reconcile(self) -> float:
        """Read, write down what is new, count."""
        now = self._clock.now()
        await self._follow()
        self._count(now)
        if self._copy is not None:
            self._copy.write(now)
        if self._pruned_at is None or abs(now - self._pruned_at) > PRUNED_EVERY:
            self._ledger.prune(now)
            self._pruned_at = now
        return RECORDS_EVERY_S if self.by_records else READ_EVERY_S

    async def read_now(self) -> None:
        """Read once more, for somebody who asks for costs.

        What cannot be read stays as it was. So does what cannot be written, e.g. on a full disk: he only asks.
        """
        if self.read_at is None or abs((self._clock.now() - self.read_at).total_seconds()) > FRESH_S:
            try:
                await self._follow()
            except StoreError as error:
                log.warning("job_uses_not_written", reason=str(error))

    async def _follow(self) -> None:
        async with self._reading:
            slots = self._ledger.slots()
            if not slots:
                return
            try:
                await self._read(self._clock.now(), slots)
                self._problem = ""
            except SlurmError as error:
                if str(error) != self._problem:
                    log.warning("job_uses_not_read", reason=str(error))
                self._problem = str(error)

    async def _read(self, now: datetime, slots: frozenset[str]) -> None:
        open_before = self._ledger.open_uses()
        # Jobs that run are in every reading, whenever they began.
        since = self.read_at or self._ledger.counted_until() or now - timedelta(days=1)
        found = await self._reader.read(since, records=await self._slurm.keeps_records())
        uses = {(use.job, use.slot, use.since): use for use in found.uses if use.slot in slots}
        ended = self.read_at or now
        for use in open_before:
            key = (use.job, use.slot, use.since)
            if key not in uses:
                # It ran when it was seen last, and slurmctld has forgotten it, or gave it other nodes.
                uses[key] = replace(use, until=max(use.since, ended))
        self._ledger.note_uses(use for key, use in uses.items() if self._known.get(key) != use)
        self._known, self.read_at, self.by_records = uses, now, found.whole

    def _count(self, now: datetime) -> None:
        """Add to the counters what jobs have cost since the last count."""
        until, last = now - COUNTED_AFTER, self._ledger.counted_until()
        if last is None or last > now:
            self._ledger.count({}, until)
            return
        if until - last < timedelta(seconds=READ_EVERY_S):
            return
        sums: dict[tuple[str, str, str], int] = {}
        known = set(self._ledger.job_costs())
        for share in shares(self._ledger.lives(last, until), self._ledger.uses(last, until), last, until, now):
            if share.use is not None:
                key = (share.life.pool, share.use.account or "-", share.use.user)
                if key not in known and len(known) >= USERS_MAX:
                    key = (share.life.pool, "others", "others")
                known.add(key)
                sums[key] = sums.get(key, 0) + share.micros
        self._ledger.count(sums, until)
