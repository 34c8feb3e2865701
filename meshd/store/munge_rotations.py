"""Rotations of the munge key in the journal: one row for each. No key is in it, only fingerprints."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from meshd.munge.rotation import Rotation
from meshd.obs.log import redact
from meshd.store.events import NewEvent
from meshd.store.journal import Journal

_ROTATION: Final = TypeAdapter(Rotation)


class MungeRotations:
    """All methods raise StoreError when the journal cannot be read or written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def last(self) -> Rotation | None:
        """The newest rotation that can be read; None when there never was one."""
        while rows := self._journal.rows("SELECT rowid, id, record FROM munge_rotations ORDER BY rowid DESC LIMIT 1"):
            for _, found in self._journal.unreadable.sift("munge_rotations", rows, _ROTATION.validate_json):
                return found
        return None

    def put(self, rotation: Rotation, text: str, at: datetime) -> Rotation:
        """Write a rotation down, with the event that tells why unless `text` is empty."""
        news = NewEvent(at, "munge_key", text, fields={"stage": rotation.stage.value}) if text else None
        with self._journal.writing(news) as db:
            db.execute(
                "INSERT INTO munge_rotations (id, record) VALUES (?,?) "
                "ON CONFLICT (id) DO UPDATE SET record=excluded.record",
                (rotation.id, redact(_ROTATION.dump_json(rotation).decode())),
            )
        return rotation
