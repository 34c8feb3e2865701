"""Images that are being made, and those made lately, in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter

from meshd.codes import EventKind
from meshd.model.image import Bake
from meshd.plaintext import plain
from meshd.redaction import redact
from meshd.store.events import NewEvent
from meshd.store.journal import Journal

_BAKE: Final = TypeAdapter(Bake)
KEPT: Final = 100
"""How many of those that are over stay in the journal."""


class Bakes:
    """All methods raise StoreError when the journal cannot be read or written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        rows = journal.rows("SELECT rowid, name, record FROM bakes")
        self._bakes: Mapping[str, Bake] = dict(journal.unreadable.sift("bakes", rows, _BAKE.validate_json))

    def all(self) -> tuple[Bake, ...]:
        """Each of them, oldest first."""
        return tuple(sorted(self._bakes.values(), key=lambda bake: (bake.begun_at, bake.name)))

    def active(self) -> tuple[Bake, ...]:
        """Those for which something is to be done."""
        return tuple(bake for bake in self.all() if bake.active)

    def find(self, name: str) -> Bake | None:
        """The one with this name."""
        return self._bakes.get(name)

    def put(self, bake: Bake, text: str, at: datetime) -> Bake:
        """Write one, and an event that says why."""
        bake = replace(bake, reason=plain(redact(bake.reason)))
        over = [one.name for one in self.all() if not one.active and one.name != bake.name]
        doomed = over[: max(0, len(over) - KEPT)]
        event = NewEvent(at, EventKind.IMAGE, text, bake.name, {"image": bake.image_id, "provider": bake.provider})
        with self._journal.writing(event) as db:
            db.execute(
                "INSERT INTO bakes (name, record) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET record=excluded.record",
                (bake.name, redact(_BAKE.dump_json(bake).decode())),
            )
            db.executemany("DELETE FROM bakes WHERE name = ?", [(name,) for name in doomed])
        kept = {name: one for name, one in self._bakes.items() if name not in doomed}
        self._bakes = {**kept, bake.name: bake}
        return bake

    def change(self, name: str, text: str, at: datetime, **changes: Any) -> Bake:
        """Write changes of the newest record; `text` says why."""
        return self.put(replace(self._bakes[name], **changes), text, at)
