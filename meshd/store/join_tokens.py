"""Join tokens in the journal: which device used one, and whether it is closed. The tokens themselves are not in it."""

from __future__ import annotations

from datetime import datetime

from meshd.codes import EventKind
from meshd.store.events import NewEvent
from meshd.store.journal import Journal


class JoinTokens:
    """The table `joins`. All methods raise StoreError when the journal cannot be read or written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def bind(self, machine: str, device_id: str, at: datetime) -> str:
        """Bind a machine's join token to the first device that used it; returns the device that it is bound to."""
        with self._journal.writing() as db:
            db.execute(
                "INSERT INTO joins (machine, device_id, at) VALUES (?,?,?) "
                "ON CONFLICT (machine) DO UPDATE SET device_id=excluded.device_id WHERE device_id = ''",
                (machine, device_id, at.isoformat()),
            )
        return self.device(machine)

    def rebind(self, machine: str, device_id: str, at: datetime) -> None:
        """The machine proved with its node token that it has another device now."""
        with self._journal.writing() as db:
            db.execute(
                "INSERT INTO joins (machine, device_id, at) VALUES (?,?,?) "
                "ON CONFLICT (machine) DO UPDATE SET device_id=excluded.device_id, at=excluded.at",
                (machine, device_id, at.isoformat()),
            )

    def device(self, machine: str) -> str:
        """The device that a machine joined with, "" while there is none."""
        rows = self._journal.rows("SELECT device_id FROM joins WHERE machine = ?", machine)
        return str(rows[0][0]) if rows else ""

    def close(self, machine: str, why: str, at: datetime) -> None:
        """The machine's join token no longer opens anything. Closing it again changes nothing."""
        if self.closed(machine):
            return
        with self._journal.writing(
            NewEvent(at, EventKind.JOIN_TOKEN, f"its join token is closed: {why}", machine)
        ) as db:
            db.execute(
                "INSERT INTO joins (machine, device_id, at, closed_at) VALUES (?1,'',?2,?2) "
                "ON CONFLICT (machine) DO UPDATE SET closed_at=excluded.closed_at",
                (machine, at.isoformat()),
            )

    def closed(self, machine: str) -> bool:
        """Whether the machine's join token was closed."""
        return bool(self._journal.rows("SELECT 1 FROM joins WHERE machine = ? AND closed_at <> ''", machine))
