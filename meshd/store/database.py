"""The journal's file: one process at a time, durable transactions, and the event that tells of each."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

from meshd.errors import StoreError
from meshd.plaintext import plain, plain_json
from meshd.redaction import redact, redact_json
from meshd.store.events import FIELDS_MAX_CHARS, NewEvent, Origin
from meshd.store.former import keep_former
from meshd.store.migrations import migrate

EVENTS_KEPT = 100_000
"""How many of meshd's own events are kept, and how many of people's. Older ones are in the system's log."""

NODE_EVENTS_KEPT = 50_000
"""How many events are kept that nodes caused."""

PRUNED_EVERY = 1000
_ALONE = ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK")


class JournalDatabase:
    """What all tables of the journal share. All methods raise StoreError when the file cannot be read or written."""

    def __init__(self, path: Path) -> None:
        """Open or create the file at `path`; its directory must exist.

        Raises:
            StoreError: another meshd has it open, it is damaged, or it is of a newer form.
        """
        self._path = path
        self._lock = take_lock(path.with_suffix(".lock"))
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=True)
        except sqlite3.Error as error:
            os.close(self._lock)
            raise _cannot_open(path, error) from error
        self._listeners: list[Callable[[], None]] = []
        self._together = False
        with self._closed_on_error():
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._db.text_factory = lambda raw: raw.decode("utf-8", "replace")
            keep_former(self._db, path)
            migrate(self._db)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """While the journal is being opened: close it again, and say why it cannot be opened."""
        try:
            yield
        except (sqlite3.Error, ValueError, OSError, StoreError) as error:
            self.close()
            raise _cannot_open(self._path, error) from error

    def close(self) -> None:
        """Close the file and let another process have it."""
        self._db.close()
        os.close(self._lock)

    def on_event(self, listener: Callable[[], None]) -> None:
        """Call `listener()` after each event, to wake those who follow."""
        self._listeners.append(listener)

    def rows(self, sql: LiteralString, *args: Any) -> list[Any]:
        """The rows of a query."""
        try:
            return self._db.execute(sql, args).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the journal {self._path} cannot be read: {error}") from error

    @contextmanager
    def writing(self, event: NewEvent | None = None) -> Iterator[sqlite3.Connection]:
        """One durable transaction, with the event that records it. Inside `together` it is a part of that one."""
        begin, end, undo = ("SAVEPOINT part", "RELEASE part", "ROLLBACK TO part") if self._together else _ALONE
        with self._transaction(begin, end, undo) as db:
            yield db
            if event is not None:
                self._insert_event(event)
        if not self._together:
            for listener in self._listeners:
                listener()

    @contextmanager
    def together(self) -> Iterator[None]:
        """One durable transaction for all writes inside: the disk takes as long for many as for one.

        Use it for writes that may be repeated when they are lost, and on which nothing depends before the end.
        """
        with self._transaction(*_ALONE):
            self._together = True
            try:
                yield
            finally:
                self._together = False
        for listener in self._listeners:
            listener()

    @contextmanager
    def _transaction(self, begin: str, end: str, undo: str) -> Iterator[sqlite3.Connection]:
        try:
            self._db.execute(begin)
            try:
                yield self._db
            except BaseException:
                # After some errors, e.g. of a full disk, SQLite has taken all of it back already.
                if self._db.in_transaction:
                    self._db.execute(undo)
                raise
            self._db.execute(end)
        except sqlite3.Error as error:
            if self._db.in_transaction and not self._together:
                self._db.execute("ROLLBACK")
            raise StoreError(f"the journal {self._path} cannot be written: {error}") from error

    def _insert_event(self, event: NewEvent) -> int:
        fields = redact(json.dumps(plain_json(redact_json(event.fields)), default=str))
        if len(fields) > FIELDS_MAX_CHARS:
            fields = json.dumps({"left_out": sorted(event.fields)[:20]})
        cursor = self._db.execute(
            "INSERT INTO events (at, machine, kind, text, fields, origin) VALUES (?,?,?,?,?,?)",
            (event.at.isoformat(), event.machine, event.kind, plain(redact(event.text)), fields, event.share.value),
        )
        event_id = int(cursor.lastrowid or 0)
        if event_id % PRUNED_EVERY == 0:
            self._prune()
        return event_id

    def _prune(self) -> None:
        for origin in Origin:
            kept = NODE_EVENTS_KEPT if origin is Origin.NODE else EVENTS_KEPT
            self._db.execute(
                "DELETE FROM events WHERE origin = ?1 AND id <= "
                "(SELECT id FROM events WHERE origin = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                (origin.value, kept),
            )


def _cannot_open(path: Path, error: Exception) -> StoreError:
    """The error with its cure. A full or unreadable disk is an OperationalError of sqlite; it damages nothing."""
    cause = error.__cause__ or error
    damaged = isinstance(cause, sqlite3.DatabaseError | ValueError) and not isinstance(cause, sqlite3.OperationalError)
    if damaged:
        words = str(cause).splitlines()[0]
        return StoreError(
            f"the journal {path} is damaged: {words}. Move it away and start meshd: it finds its machines again by "
            "their tags; targets must be set again"
        )
    return error if isinstance(error, StoreError) else StoreError(f"the journal {path} cannot be opened: {error}")


def take_lock(path: Path) -> int:
    """Take the lock of the only writer; returns its descriptor. The kernel drops the lock when the process ends."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be made: {error.strerror}: cluster.state_dir must exist and belong to SlurmUser"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise StoreError(f"another meshd runs with this journal ({path} is locked)") from error
    return fd
