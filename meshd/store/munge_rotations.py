"""Rotations of the munge key in the journal: one row each, with fingerprints and without keys."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from meshd.codes import EventKind
from meshd.munge.rotation import MungeRotation
from meshd.obs.log import redact
from meshd.store.events import NewEvent
from meshd.store.journal import Journal

_ROTATION: Final = TypeAdapter(MungeRotation)


class MungeRotations:
    """All methods raise StoreError when the journal cannot be read or written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last = self._read_last()

    def last(self) -> MungeRotation | None:
        """The newest rotation: the active one, if there is one. None: there never was one."""
        return self._last

    def put(self, rotation: MungeRotation, text: str, at: datetime) -> MungeRotation:
        """Write a rotation, and an event with this text unless it is empty."""
        event = NewEvent(at, EventKind.MUNGE_KEY, text, fields={"stage": rotation.stage.value}) if text else None
        with self._journal.writing(event) as db:
            db.execute(
                "INSERT INTO munge_rotations (id, record) VALUES (?,?) "
                "ON CONFLICT (id) DO UPDATE SET record=excluded.record",
                (rotation.id, redact(_ROTATION.dump_json(rotation).decode())),
            )
        self._last = rotation
        return rotation

    def _read_last(self) -> MungeRotation | None:
        """The newest rotation that can be read."""
        while rows := self._journal.rows("SELECT rowid, id, record FROM munge_rotations ORDER BY rowid DESC LIMIT 1"):
            for _, found in self._journal.unreadable.sift("munge_rotations", rows, _ROTATION.validate_json):
                return found
        return None
