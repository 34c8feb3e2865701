"""What receivers were told, in the journal: a restart neither repeats nor forgets. One row for each receiver."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from meshd.codes import EventKind
from meshd.plan.notices import Told
from meshd.redaction import redact
from meshd.store.events import NewEvent
from meshd.store.journal import Journal

_TOLD: Final = TypeAdapter(Told)


class ToldReceivers:
    """All methods raise StoreError when the journal cannot be read or written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        rows = journal.rows("SELECT rowid, name, record FROM told_receivers")
        self._told: Mapping[str, Told] = dict(journal.unreadable.sift("told_receivers", rows, _TOLD.validate_json))

    def all(self) -> Mapping[str, Told]:
        """By the receiver's name."""
        return self._told

    def put(self, name: str, told: Told, event: str = "", at: datetime | None = None) -> None:
        """Write what a receiver was told, with an event where `event` says what happened at `at`."""
        kind = NewEvent(at, EventKind.NOTIFY, event, fields={"receiver": name}) if event and at is not None else None
        with self._journal.writing(kind) as db:
            db.execute(
                "INSERT INTO told_receivers (name, record) VALUES (?,?) "
                "ON CONFLICT (name) DO UPDATE SET record=excluded.record",
                (name, redact(_TOLD.dump_json(told).decode())),
            )
        self._told = {**self._told, name: told}

    def forget(self, name: str) -> None:
        """Delete a receiver that left the settings."""
        with self._journal.writing() as db:
            db.execute("DELETE FROM told_receivers WHERE name = ?", (name,))
        self._told = {other: told for other, told in self._told.items() if other != name}
