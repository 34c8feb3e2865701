"""The promises of pools in the journal: what Slurm's lines say of each slot, kept over a restart without offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from meshd.codes import EventKind
from meshd.model.desired import Promise
from meshd.store.events import NewEvent
from meshd.store.journal import Journal


@dataclass(frozen=True, slots=True)
class KeptPromise:
    """A pool's promise.

    Attributes:
        asked: what the settings asked for when it was made, as a digest: another one means that they have changed.
    """

    promise: Promise
    asked: str = ""


_KEPT: Final = TypeAdapter(KeptPromise)


class Promises:
    """All methods raise StoreError when the journal cannot be read or written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        rows = journal.rows("SELECT rowid, pool, record FROM promises")
        self._kept: Mapping[str, KeptPromise] = dict(journal.unreadable.sift("promises", rows, _KEPT.validate_json))

    def kept(self) -> Mapping[str, KeptPromise]:
        """By pool; also of pools that the settings no longer have."""
        return self._kept

    def put(self, pool: str, kept: KeptPromise, text: str, at: datetime) -> None:
        """Write a pool's promise, and an event with this text unless it is empty."""
        event = NewEvent(at, EventKind.PROMISE, text, fields={"pool": pool}) if text else None
        with self._journal.writing(event) as db:
            db.execute(
                "INSERT INTO promises (pool, record) VALUES (?,?) "
                "ON CONFLICT (pool) DO UPDATE SET record=excluded.record",
                (pool, _KEPT.dump_json(kept).decode()),
            )
        self._kept = {**self._kept, pool: kept}
