"""That an older journal was restored, and which clouds were listed since, in the journal: it survives restarts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from meshd.codes import EventKind
from meshd.store.events import NewEvent
from meshd.store.journal import Journal
from meshd.store.restored_mark import marked_at


@dataclass(frozen=True, slots=True)
class Restore:
    """When the journal was restored, and the clouds that need not be waited for any more."""

    at: datetime
    settled: tuple[str, ...] = ()


_RESTORE: Final = TypeAdapter(Restore)
_NAME: Final = "meshd"


class Restores:
    """All methods raise StoreError when the journal cannot be read or written.

    A mark that `meshctl restore` left is taken when this is made.
    """

    def __init__(self, journal: Journal, now: datetime) -> None:
        self._journal = journal
        rows = journal.rows("SELECT rowid, name, record FROM restores")
        found = dict(journal.unreadable.sift("restores", rows, _RESTORE.validate_json))
        self._restore = found.get(_NAME)
        ((number,),) = journal.rows("PRAGMA application_id")
        at = marked_at(number)
        if at is not None:
            text = "an older journal was restored: each cloud is listed before anything is rented or ended there"
            self._put(Restore(min(at, now)), NewEvent(now, EventKind.JOURNAL, text), take_mark=True)
        elif rows and self._restore is None:  # unknown is not absent
            self._put(Restore(now), NewEvent(now, EventKind.JOURNAL, "the record of a restore could not be read"))

    @property
    def current(self) -> Restore | None:
        """The restore after which not all clouds were listed; None for none."""
        return self._restore

    def listed(self, clouds: Iterable[str], now: datetime) -> None:
        """These clouds were listed since."""
        names = ", ".join(sorted(clouds))
        self._settle(clouds, NewEvent(now, EventKind.JOURNAL, f"listed since the journal was restored: {names}"))

    def release(self, cloud: str, by: str, now: datetime) -> None:
        """Somebody says that this cloud is not to be waited for."""
        text = f"{by} lets meshd go on without a listing of {cloud} since the journal was restored"
        self._settle((cloud,), NewEvent(now, EventKind.THAW, text, fields={"by": by, "provider": cloud}))

    def forget(self) -> None:
        """All clouds were listed."""
        with self._journal.writing() as db:
            db.execute("DELETE FROM restores")
        self._restore = None

    def _settle(self, clouds: Iterable[str], event: NewEvent) -> None:
        if self._restore is not None:
            settled = {*self._restore.settled, *clouds}
            self._put(Restore(self._restore.at, tuple(sorted(settled))), event)

    def _put(self, restore: Restore, event: NewEvent, *, take_mark: bool = False) -> None:
        with self._journal.writing(event) as db:
            db.execute(
                "INSERT OR REPLACE INTO restores (name, record) VALUES (?,?)",
                (_NAME, _RESTORE.dump_json(restore).decode()),
            )
            if take_mark:
                db.execute("PRAGMA application_id = 0")
        self._restore = restore
