"""The ledger: what each machine is billed for, and which jobs used it.

The lives of machines follow from their records, and are written in the same transaction as these: so a crash loses
none, and writing one twice changes nothing. They are kept for `KEPT` days after their end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, LiteralString

from meshd.model.budget import Period, Spent
from meshd.model.ledger import JobUse, Life
from meshd.model.machine import Machine
from meshd.plaintext import plain
from meshd.plan.ledger import Rounding, added, lives_of, spent
from meshd.store.journal import Journal

KEPT = timedelta(days=400)
"""How long lives and uses are kept after their end. Their sums stay in the counters of the metrics."""

USES_MAX = 2_000_000
"""The most uses of jobs that are kept; the oldest go first."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES = frozenset({"since", "until", "end_asked_at"})


class Ledger:
    """The tables `lives`, `job_uses` and `ledger_pruned`. All methods raise StoreError when the journal fails.

    Args:
        journal: the database, and the machines' records.
        rounding: how each provider rounds a machine's time up.
        now: UTC.
    """

    def __init__(self, journal: Journal, rounding: Mapping[str, Rounding], now: Callable[[], datetime]) -> None:
        self._journal = journal
        self._rounding = rounding
        self._now = now
        self._lives: dict[str, tuple[Life, ...]] = {}
        """Of machines that are alive, or were in this month: what the sums of the budget need."""
        self._ended: dict[tuple[str, str], int] | None = None
        """What lives that are over have cost, by pool and provider; None: to be summed up again."""
        self._over: tuple[datetime, dict[str, Spent]] | None = None
        """What lives that are over have cost in a day and its month; None: to be summed up again."""
        self._month = Period.MONTH.since(now())
        self._load()
        self._catch_up()
        journal.on_machine(self._changed)

    # -- lives ----------------------------------------------------------------------------------------------------

    def lives(self, start: datetime, end: datetime) -> list[Life]:
        """All lives that may have cost anything between `start` and `end`, in the order of their begin.

        A life that is over may be billed a little longer than it was, since clouds round up.
        """
        early = _number(start - timedelta(hours=1))
        rows = self._journal.rows(
            "SELECT * FROM lives WHERE since < ? AND (until IS NULL OR until >= ?) "
            "ORDER BY since, machine, part", _number(end), early,
        )  # fmt: skip
        return [_life(row) for row in rows]

    def spent(self, now: datetime) -> dict[str, Spent]:
        """What each pool, and all together ("") have cost in the day and the month of `now`. Reads memory."""
        if Period.MONTH.since(now) != self._month:
            self._month = Period.MONTH.since(now)
            self._load()
        day = Period.DAY.since(now)
        if self._over is None or self._over[0] != day:
            over = [life for lives in self._lives.values() for life in lives if life.until is not None]
            self._over = day, spent(over, now)
        alive = [life for lives in self._lives.values() for life in lives[-1:] if life.until is None]
        return added(self._over[1], spent(alive, now))

    def known_since(self) -> datetime | None:
        """When the ledger begins: the first life in it; None when it is empty."""
        (first,) = self._journal.rows("SELECT min(since) FROM lives")[0]
        return _moment(first)

    def this_month(self, most: int) -> tuple[Life, ...]:
        """The lives that are alive, or were in this month; of too many the newest. Reads memory."""
        lives = sorted(
            (life for lives in self._lives.values() for life in lives),
            key=lambda one: (one.since, one.machine, one.part),
        )
        return tuple(lives[-most:])

    def add_lost(self, lives: Iterable[Life]) -> int:
        """Add lives of machines that the ledger and the journal have never had; how many there were."""
        known = {
            str(name) for (name,) in self._journal.rows("SELECT name FROM machines UNION SELECT machine FROM lives")
        }
        lost = [life for life in lives if life.machine not in known]
        if lost:
            with self._journal.writing() as db:
                db.executemany(_INSERT, [_row(life) for life in lost])
            self._load()
            self._ended = None
        return len(lost)

    # -- jobs -----------------------------------------------------------------------------------------------------

    def note_uses(self, uses: Iterable[JobUse]) -> None:
        """Write down what jobs had. One that is known is written again: its end may be known now."""
        rows = [
            (
                plain(use.job), plain(use.slot), _number(use.since), _number(use.until), plain(use.user),
                plain(use.account), plain(use.name)[:200], use.gpus, use.cpus,
            )
            for use in uses
        ]  # fmt: skip
        if rows:
            with self._journal.writing() as db:
                db.executemany(
                    "INSERT INTO job_uses (job, slot, since, until, user, account, name, gpus, cpus) "
                    "VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT (job, slot, since) DO UPDATE SET until=excluded.until, "
                    "user=excluded.user, account=excluded.account, name=excluded.name, gpus=excluded.gpus, "
                    "cpus=excluded.cpus",
                    rows,
                )

    def uses(self, start: datetime, end: datetime) -> list[JobUse]:
        """What jobs had between `start` and `end`."""
        rows = self._journal.rows(
            "SELECT job, slot, user, account, name, since, until, gpus, cpus FROM job_uses "
            "WHERE since < ? AND (until IS NULL OR until > ?)", _number(end), _number(start),
        )  # fmt: skip
        return [_use(row) for row in rows]

    def open_uses(self) -> list[JobUse]:
        """What jobs have still, as far as is known."""
        rows = self._journal.rows(
            "SELECT job, slot, user, account, name, since, until, gpus, cpus FROM job_uses WHERE until IS NULL"
        )
        return [_use(row) for row in rows]

    def slots(self) -> frozenset[str]:
        """The slots of machines that are alive, or were in this month."""
        return frozenset(life.slot for lives in self._lives.values() for life in lives)

    def job_costs(self) -> dict[tuple[str, str, str], int]:
        """What jobs have cost in all, by pool, account and user, in millionths of a USD, as counted so far."""
        rows = self._journal.rows("SELECT pool, account, user, micros FROM job_costs")
        return {(str(pool), str(account), str(user)): int(cost) for pool, account, user, cost in rows}

    def counted_until(self) -> datetime | None:
        """Until when the costs of jobs are counted; None: not at all."""
        rows = self._journal.rows("SELECT at FROM job_costs_until")
        return _moment(rows[0][0]) if rows else None

    def count(self, found: Mapping[tuple[str, str, str], int], until: datetime) -> None:
        """Add to the costs of jobs what they have cost from the last count until then."""
        with self._journal.writing() as db:
            db.executemany(
                "INSERT INTO job_costs VALUES (?,?,?,?) ON CONFLICT (pool, account, user) "
                "DO UPDATE SET micros = micros + excluded.micros",
                [(*key, cost) for key, cost in found.items()],
            )
            db.execute("INSERT OR REPLACE INTO job_costs_until VALUES (1, ?)", (_number(until),))

    # -- bounds ---------------------------------------------------------------------------------------------------

    def prune(self, now: datetime) -> None:
        """Forget what ended more than `KEPT` ago; what it cost stays in the counters."""
        old = _number(now - KEPT)
        rows = self._journal.rows(
            "SELECT * FROM lives WHERE machine NOT IN (SELECT machine FROM lives WHERE until IS NULL OR until >= ?)",
            old,
        )
        with self._journal.writing() as db:
            for life in map(_life, rows):
                db.execute(
                    "INSERT INTO ledger_pruned (pool, provider, micros) VALUES (?,?,?) ON CONFLICT (pool, provider) "
                    "DO UPDATE SET micros = micros + excluded.micros",
                    (life.pool, life.provider, life.cost(life.since, life.billed_until(now))),
                )
            db.executemany("DELETE FROM lives WHERE machine = ?", {(row[0],) for row in rows})
            db.execute("DELETE FROM job_uses WHERE until < ?", (old,))
            db.execute(
                "DELETE FROM job_uses WHERE rowid <= (SELECT rowid FROM job_uses ORDER BY rowid DESC LIMIT 1 OFFSET ?)",
                (USES_MAX,),
            )

    def totals(self, now: datetime) -> dict[tuple[str, str], int]:
        """What all machines have ever cost, by pool and provider, in millionths of a USD. It never falls."""
        if self._ended is None:
            self._ended = {
                (str(pool), str(provider)): int(cost)
                for pool, provider, cost in self._journal.rows("SELECT pool, provider, micros FROM ledger_pruned")
            }
            rows = self._journal.rows("SELECT * FROM lives WHERE shown = 1 AND until IS NOT NULL")
            _add(self._ended, map(_life, rows), now)
        sums = dict(self._ended)
        alive = (life for lives in self._lives.values() for life in lives if life.shown and life.until is None)
        _add(sums, alive, now)
        return sums

    # -- inside ---------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Into memory: what is alive, or was in this month."""
        self._lives, self._over = {}, None
        early = _number(self._month - timedelta(hours=1))
        rows = self._journal.rows(
            "SELECT * FROM lives WHERE machine IN "
            "(SELECT machine FROM lives WHERE until IS NULL OR until >= ?) ORDER BY machine, part", early,
        )  # fmt: skip
        for life in map(_life, rows):
            self._lives[life.machine] = (*self._lives.get(life.machine, ()), life)

    def _catch_up(self) -> None:
        """Write down the lives of machines whose records are newer than the ledger, or than this table."""
        journal, cutoff = self._journal, f"{self._now() - KEPT:%Y-%m-%dT%H:%M:%S}"
        open_ones = {name for name, lives in self._lives.items() if lives[-1].until is None}
        missing = {
            str(name)
            for (name,) in journal.rows(
                "SELECT name FROM machines WHERE phase = 'gone' AND instance_id <> '' AND name NOT IN "
                "(SELECT machine FROM lives) AND CASE WHEN json_valid(record) THEN "
                "json_extract(record, '$.gone_at') END > ?",
                cutoff,
            )
        }
        machines = {m.name: m for m in journal.machines()}
        found = [journal.machine(name) for name in sorted((open_ones | missing) - machines.keys())]
        with journal.writing() as db:
            done = [self._changed(db, m) for m in (*machines.values(), *found) if m is not None]
        for one in done:
            one()

    def _changed(self, db: sqlite3.Connection, machine: Machine) -> Callable[[], None]:
        """A machine's record is being written in this transaction; what is returned is called when it is durable."""
        known = self._lives.get(machine.name)
        if known is None:
            rows = self._journal.rows("SELECT * FROM lives WHERE machine = ? ORDER BY part", machine.name)
            known = tuple(map(_life, rows))
        before = Rounding(known[-1].increment_s, known[-1].minimum_s) if known else Rounding()
        lives = lives_of(machine, known, self._rounding.get(machine.provider, before), self._now())
        if lives != known:
            db.execute("DELETE FROM lives WHERE machine = ?", (machine.name,))
            db.executemany(_INSERT, [_row(life) for life in lives])
        return partial(self._keep, machine.name, lives)

    def _keep(self, machine: str, lives: tuple[Life, ...]) -> None:
        if lives != self._lives.get(machine):
            self._ended = self._over = None
        if lives:
            self._lives[machine] = lives
        else:
            self._lives.pop(machine, None)


_INSERT: LiteralString = "INSERT INTO lives VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"


def _add(sums: dict[tuple[str, str], int], lives: Iterable[Life], now: datetime) -> None:
    for life in lives:
        key = (life.pool, life.provider)
        sums[key] = sums.get(key, 0) + life.cost(life.since, life.billed_until(now))


def _row(life: Life) -> tuple[Any, ...]:
    return tuple(_number(value) if isinstance(value, datetime) else value for value in astuple(life))


def _life(row: tuple[Any, ...]) -> Life:
    named = dict(zip((field.name for field in fields(Life)), row, strict=True))
    times = {name: _moment(named[name]) for name in _TIMES}
    return Life(**{**named, **times, "spot": bool(named["spot"]), "shown": bool(named["shown"])})


def _use(row: tuple[Any, ...]) -> JobUse:
    job, slot, user, account, name, since, until, gpus, cpus = row
    return JobUse(job, slot, user, account, name, _moment(since) or _EPOCH, _moment(until), gpus, cpus)


def _number(at: datetime | None) -> int | None:
    """A time as microseconds since 1970."""
    return None if at is None else (at - _EPOCH) // timedelta(microseconds=1)


def _moment(number: int | None) -> datetime | None:
    return None if number is None else _EPOCH + timedelta(microseconds=number)
