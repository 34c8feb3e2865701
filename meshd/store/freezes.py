"""The freeze, in the journal: it survives restarts of meshd."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from meshd.codes import EventKind
from meshd.model.freeze import REASON_MAX, Freeze
from meshd.plaintext import plain
from meshd.redaction import redact
from meshd.store.events import NewEvent
from meshd.store.journal import Journal

_FREEZE: Final = TypeAdapter(Freeze)
_NAME: Final = "meshd"


class Freezes:
    """All methods raise StoreError when the journal cannot be read or written."""

    def __init__(self, journal: Journal, now: datetime) -> None:
        self._journal = journal
        rows = journal.rows("SELECT rowid, name, record FROM freezes")
        found = dict(journal.unreadable.sift("freezes", rows, _FREEZE.validate_json))
        self._freeze = found.get(_NAME)
        if rows and self._freeze is None:  # unknown is not absent
            self.freeze(Freeze(now, "meshd", "the record of a freeze in the journal could not be read"))

    @property
    def current(self) -> Freeze | None:
        """The freeze that holds; None for none."""
        return self._freeze

    def freeze(self, wanted: Freeze) -> Freeze:
        """Freeze, unless a freeze holds already; returns the one that holds."""
        if self._freeze is None:
            freeze = Freeze(wanted.at, wanted.by, plain(redact(wanted.reason), REASON_MAX))
            text = f"{freeze.by} freezes meshd: nothing is rented or ended"
            text += f" ({freeze.reason})" if freeze.reason else ""
            with self._journal.writing(NewEvent(freeze.at, EventKind.FREEZE, text, fields={"by": freeze.by})) as db:
                db.execute(
                    "INSERT OR REPLACE INTO freezes (name, record) VALUES (?,?)",
                    (_NAME, _FREEZE.dump_json(freeze).decode()),
                )
            self._freeze = freeze
        return self._freeze

    def thaw(self, by: str, at: datetime) -> Freeze | None:
        """End the freeze; returns the one that held, None for none."""
        held = self._freeze
        if held is not None:
            text = f"{by} thaws meshd, which was frozen since {held.at:%Y-%m-%d %H:%M} UTC by {held.by}"
            with self._journal.writing(NewEvent(at, EventKind.THAW, text, fields={"by": by})) as db:
                db.execute("DELETE FROM freezes")
            self._freeze = None
        return held
