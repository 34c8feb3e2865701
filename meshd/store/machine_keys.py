"""Auth keys for one machine in the journal, while they may be used. Their secrets are not in it."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from meshd.codes import EventKind
from meshd.obs.log import redact
from meshd.store.events import NewEvent
from meshd.store.journal import Journal
from meshd.tailnet.machine_keys import MachineKey
from meshd.tailnet.spare_keys import PURPOSES

_KEY: Final = TypeAdapter(MachineKey)


class OpenKeys:
    """All methods raise StoreError when the journal cannot be read or written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        rows = journal.rows("SELECT rowid, machine || ' ' || purpose, record FROM machine_keys")
        keys = (key for _, key in journal.unreadable.sift("machine_keys", rows, _KEY.validate_json))
        self._keys = {(key.machine, key.purpose): key for key in keys}

    def all(self) -> list[MachineKey]:
        """Each key that may still be used."""
        return list(self._keys.values())

    def find(self, machine: str, purpose: str) -> MachineKey | None:
        """The key of a machine for a purpose."""
        return self._keys.get((machine, purpose))

    def spares_of(self, machine: str) -> list[MachineKey]:
        """The spares of a machine."""
        return [key for purpose in PURPOSES if (key := self.find(machine, purpose)) is not None]

    def put(self, key: MachineKey) -> MachineKey:
        """Write a record."""
        with self._journal.writing() as db:
            db.execute(
                "INSERT INTO machine_keys (machine, purpose, record) VALUES (?,?,?) "
                "ON CONFLICT (machine, purpose) DO UPDATE SET record=excluded.record",
                (key.machine, key.purpose, redact(_KEY.dump_json(key).decode())),
            )
        self._keys[key.machine, key.purpose] = key
        return key

    def close(self, key: MachineKey, why: str, at: datetime) -> None:
        """Remove a key that cannot be used any more, with an event that says why."""
        name = f"its own auth key {key.id}" if key.id else "what may have been minted for it"
        event = NewEvent(at, EventKind.AUTH_KEY, f"{name} is over: {why}", key.machine, {"purpose": key.purpose})
        with self._journal.writing(event) as db:
            db.execute("DELETE FROM machine_keys WHERE machine = ? AND purpose = ?", (key.machine, key.purpose))
        self._keys.pop((key.machine, key.purpose), None)
