"""Rows of the journal that cannot be read: kept aside, shown as a problem, and done without."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import structlog

from meshd.codes import EventKind
from meshd.plaintext import plain
from meshd.store.database import JournalDatabase
from meshd.store.events import NewEvent

log = structlog.get_logger(__name__)

T = TypeVar("T")

SHOWN_FOR: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that was kept aside; `key` identifies it in its table."""

    at: datetime
    table: str
    key: str
    why: str


class UnreadableRows:
    """The table of such rows, and the reader of other tables that moves them there."""

    def __init__(self, journal: JournalDatabase) -> None:
        self._journal = journal

    def sift(
        self, table: str, rows: Iterable[tuple[int, str, str]], read: Callable[[str], T]
    ) -> Iterator[tuple[str, T]]:
        """Read rows, and move those aside that cannot be read.

        Args:
            table: where they are from.
            rows: (rowid, key, record) of each.
            read: makes a value of a record; raises ValueError and the like when it cannot.

        Yields:
            (key, value) of each that can be read.

        Raises:
            StoreError: the journal cannot be written.
        """
        for rowid, key, record in rows:
            try:
                yield key, read(record)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                self._move(table, rowid, key, record, error)

    @staticmethod
    def keep(db: sqlite3.Connection, row: Unreadable, record: str) -> None:
        """Keep a record aside as it is; `db` is in a transaction."""
        log.error("journal_row_unreadable", table=row.table, key=row.key, reason=row.why)
        db.execute(
            "INSERT INTO unreadable (at, of_table, key, record, why) VALUES (?,?,?,?,?)",
            (row.at.isoformat(), row.table, row.key, record, row.why),
        )

    def lately(self, now: datetime) -> list[Unreadable]:
        """The rows kept aside in the last week, newest first, one for each key."""
        since = (now - SHOWN_FOR).isoformat()
        rows = self._journal.rows(
            "SELECT max(at), of_table, key, why FROM unreadable WHERE at >= ? GROUP BY of_table, key "
            "ORDER BY max(at) DESC LIMIT 100",
            since,
        )
        return [Unreadable(datetime.fromisoformat(at), table, key, why) for at, table, key, why in rows]

    def _move(self, table: str, rowid: int, key: str, record: str, error: Exception) -> None:
        now, why = datetime.now(UTC), plain(f"{type(error).__name__}: {_first_line(error)}", 300)
        event = NewEvent(
            now, EventKind.JOURNAL, f"a row of {table} in the journal cannot be read ({plain(key, 100)}): {why}"
        )
        with self._journal.writing(event) as db:
            self.keep(db, Unreadable(now, table, plain(key, 200), why), record)
            _delete(db, table, rowid)


def _delete(db: sqlite3.Connection, table: str, rowid: int) -> None:
    assert table.replace("_", "").isalpha()
    db.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))  # noqa: S608  # a table's name of our own


def _first_line(error: Exception) -> Any:
    """The error in one line. Pydantic's names the fields, without their values."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        return "; ".join(".".join(str(part) for part in one["loc"]) for one in errors(include_input=False)[:5])
    return str(error).splitlines()[0] if str(error) else ""
