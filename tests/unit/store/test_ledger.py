"""What the ledger has of a machine: its whole life, crashes, records that it has not seen, what is not clear."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from meshd.codes import EventKind
from meshd.errors import StoreError
from meshd.model.budget import Spent
from meshd.model.ledger import JobUse
from meshd.model.machine import Machine, Phase
from meshd.plan.ledger import Rounding
from meshd.store.journal import Journal
from meshd.store.ledger import KEPT, Ledger
from meshd.store.ledger_copy import LedgerCopy
from tests.unit.worlds import NOW, ago, machine

HOUR = timedelta(hours=1)
FAR = NOW + timedelta(days=30)


class Book:
    """A journal and its ledger, at a time of our own."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "meshd.db"
        self.now = NOW
        self.rounding = {"aws": Rounding(1.0, 60.0), "lambda": Rounding(60.0, 0.0)}
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.path)
        self.ledger = Ledger(self.journal, self.rounding, lambda: self.now)

    def again(self) -> None:
        self.journal.close()
        self.open()

    def put(self, found: Machine, **changes: Any) -> Machine:
        return self.journal.put(replace(found, **changes), EventKind.PHASE, "", self.now)

    def costs(self) -> list[int]:
        return [life.cost(life.since, life.billed_until(self.now)) for life in self.ledger.lives(ago(9e9), FAR)]


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    found = Book(tmp_path)
    yield found
    found.journal.close()


def test_a_machine_costs_from_its_launch_until_its_end_was_asked_for(book: Book) -> None:
    m = book.put(machine(Phase.REQUESTED))
    assert book.costs() == []
    m = book.put(m, phase=Phase.LAUNCHING, launch_called_at=NOW)
    m = book.put(m, phase=Phase.BOOTING, instance_id="i-1", launched_at=NOW - timedelta(seconds=2))
    book.now = NOW + HOUR
    assert book.costs() == [2_001_111]
    m = book.put(m, phase=Phase.TERMINATING, terminate_called_at=book.now, terminate_calls=1)
    book.now += timedelta(seconds=40)
    m = book.put(m, terminate_called_at=book.now, terminate_calls=2)
    assert book.costs() == [2_001_111], "the first call counts"
    book.put(m, phase=Phase.GONE, gone_at=book.now)
    book.again()
    assert book.costs() == [2_001_111]
    assert book.ledger.spent(book.now) == {"": Spent(2_001_111, 2_001_111), "h100": Spent(2_001_111, 2_001_111)}


def test_a_machine_that_its_cloud_does_not_end_goes_on_costing(book: Book) -> None:
    m = book.put(machine(Phase.TERMINATING, launched_at=NOW, terminate_called_at=NOW + HOUR))
    book.now = NOW + 10 * HOUR
    assert book.costs() == [20_000_000]
    book.put(m, phase=Phase.GONE, gone_at=book.now)
    assert book.costs() == [20_000_000]


@pytest.mark.parametrize(("provider", "lasted_s", "billed_s"), [("aws", 5, 60), ("aws", 61.5, 62), ("lambda", 61, 120)])
def test_its_time_is_rounded_up_as_its_cloud_does(book: Book, provider: str, lasted_s: float, billed_s: int) -> None:
    gone_at = NOW + timedelta(seconds=lasted_s)
    book.now = gone_at + HOUR
    m = machine(Phase.GONE, provider=provider, launched_at=NOW, gone_at=gone_at)
    book.put(replace(m, offer=replace(m.offer, usd_per_hour=3.6)))
    assert book.costs() == [billed_s * 1000]


def test_what_nobody_made_costs_nothing(book: Book) -> None:
    m = book.put(machine(Phase.LAUNCHING, launch_called_at=NOW))
    book.now = NOW + HOUR
    assert book.costs() == [2_000_000], "it may exist"
    assert book.ledger.totals(book.now) == {}, "a counter never falls"
    book.put(m, phase=Phase.GONE, gone_at=book.now)
    assert book.costs() == []
    m = book.put(machine(Phase.LAUNCHING, index=2, launch_called_at=NOW, head_reached_at=NOW))
    book.put(m, phase=Phase.GONE, gone_at=book.now)
    assert book.costs() == [2_000_000], "it called the head, so it was there"


def test_a_price_that_changes_counts_from_then_on(book: Book) -> None:
    m = book.put(machine(Phase.READY, launched_at=NOW))
    book.now = NOW + HOUR
    m = book.put(m, offer=replace(m.offer, usd_per_hour=10.0))
    book.now += HOUR
    book.again()
    assert book.costs() == [2_000_000, 10_000_000]
    book.put(m, phase=Phase.GONE, gone_at=book.now)
    book.now += HOUR
    assert sum(book.costs()) == 12_000_000


def test_records_that_the_ledger_has_not_seen_are_caught_up_with(tmp_path: Path) -> None:
    """As after an upgrade, or when an older meshd ran in between."""
    journal = Journal(tmp_path / "meshd.db")
    m = journal.put(machine(Phase.READY, launched_at=NOW), EventKind.PHASE, "", NOW)
    gone = machine(Phase.GONE, index=2, launched_at=NOW, gone_at=NOW + HOUR)
    old = machine(Phase.GONE, index=3, launched_at=NOW - 2 * KEPT, gone_at=NOW - KEPT - HOUR)
    for one in (gone, old):
        journal.put(one, EventKind.PHASE, "", NOW)
    journal.close()
    book = Book(tmp_path)
    book.now = NOW + HOUR
    assert book.costs() == [2_000_000, 2_000_000]
    book.journal.close()
    journal = Journal(tmp_path / "meshd.db")
    journal.put(replace(m, phase=Phase.GONE, gone_at=NOW + 2 * HOUR), EventKind.PHASE, "", NOW)
    journal.close()
    book.open()
    book.now = NOW + 9 * HOUR
    assert book.costs() == [4_000_000, 2_000_000]
    book.journal.close()


def test_what_is_not_written_is_not_believed(book: Book) -> None:
    """A transaction that fails leaves the ledger as it was: the next one writes it."""
    book.put(machine(Phase.READY, launched_at=NOW))
    book.journal._db.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError):
        book.put(machine(Phase.GONE, launched_at=NOW, gone_at=NOW + HOUR))
    book.journal._db.execute("PRAGMA query_only = OFF")
    book.now = NOW + 2 * HOUR
    assert book.costs() == [4_000_000]
    book.put(machine(Phase.GONE, launched_at=NOW, gone_at=NOW + HOUR))
    book.again()
    assert book.costs() == [2_000_000]


def test_a_new_day_begins_at_0_and_a_new_month_too(book: Book) -> None:
    book.put(machine(Phase.READY, launched_at=NOW))  # 2026-03-01 12:00 UTC
    book.now = NOW + timedelta(hours=13)
    assert book.ledger.spent(book.now)[""] == Spent(2_000_000, 26_000_000)
    book.now = NOW.replace(month=4, day=1, hour=3)
    assert book.ledger.spent(book.now)[""] == Spent(6_000_000, 6_000_000)
    assert book.ledger.spent(NOW + timedelta(hours=13))[""].day == 2_000_000, "the clock was set back"


def test_what_is_old_is_forgotten_and_stays_in_the_counters(book: Book) -> None:
    book.put(machine(Phase.GONE, launched_at=NOW, gone_at=NOW + HOUR))
    book.ledger.note_uses([JobUse("7", "h100-1", "ann", "lab", "train", NOW, NOW + HOUR, 1, 8)])
    book.now = NOW + KEPT + 2 * HOUR
    for _ in range(2):
        book.ledger.prune(book.now)
        assert (book.costs(), book.ledger.uses(ago(9e9), FAR)) == ([], [])
        assert book.ledger.totals(book.now) == {("h100", "aws"): 2_000_000}
        book.again()


def test_a_job_that_is_seen_again_is_one_use(book: Book) -> None:
    running = JobUse("7", "h100-1", "ann", "lab", "train", NOW, None, 1, 8)
    ended = replace(running, until=NOW + HOUR)
    book.ledger.note_uses([running])
    assert book.ledger.open_uses() == [running]
    for _ in range(2):
        book.ledger.note_uses([ended])
        assert book.ledger.uses(NOW, FAR) == [ended]
    assert book.ledger.open_uses() == []


def test_a_lost_journal_does_not_begin_the_month_at_0(book: Book) -> None:
    kept = book.put(machine(Phase.READY, launched_at=NOW))
    book.put(machine(Phase.READY, index=2, launched_at=NOW))
    book.put(machine(Phase.GONE, index=3, launched_at=NOW - HOUR, gone_at=NOW))
    book.now = NOW + HOUR
    path = book.path.with_name("ledger.json")
    LedgerCopy(path, book.ledger).write(book.now)
    book.journal.close()
    book.path.unlink()
    book.open()
    copy = LedgerCopy(path, book.ledger)
    assert (copy.restore(book.now), copy.restore(book.now)) == (3, 0)
    book.now = NOW + 2 * HOUR
    assert book.ledger.spent(book.now)[""].month == 6_000_000, "an hour each, until they are found again"
    book.put(replace(kept, launch_attempts=0))
    assert book.ledger.spent(book.now)[""].month == 8_000_000
    book.again()
    assert LedgerCopy(path, book.ledger).restore(book.now) == 0


@pytest.mark.parametrize("text", ["", "[]", "{", '["2026-03-01T12:00:00Z", [{"machine": 7}]]'])
def test_a_damaged_copy_is_told_and_nothing_else(book: Book, text: str) -> None:
    path = book.path.with_name("ledger.json")
    path.write_text(text)
    copy = LedgerCopy(path, book.ledger)
    assert copy.restore(NOW) == 0
    assert str(path) in copy.problem
    copy.write(NOW)
    assert copy.problem == ""
