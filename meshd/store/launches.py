"""When machines were ordered lately, from their records in the journal: guards count them, also after a restart."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from meshd.model.guards import LAUNCH_INTERVAL_MAX_S
from meshd.model.machine import Machine
from meshd.plan.guards import ordered_at
from meshd.store.journal import Journal


class Launches:
    """Raises StoreError when the journal cannot be read."""

    def __init__(self, journal: Journal, now: datetime) -> None:
        since = now - timedelta(seconds=LAUNCH_INTERVAL_MAX_S)
        self._at: dict[str, datetime] = {}
        for machine in (*journal.machines(), *journal.gone_since(since)):
            self._keep(machine)
        journal.on_machine(self._follow)

    def within(self, seconds: float, now: datetime) -> tuple[datetime, ...]:
        """When each order of the last `seconds` went out. One from after `now`, when the clock was set back, is now."""
        oldest, since = now - timedelta(seconds=LAUNCH_INTERVAL_MAX_S), now - timedelta(seconds=seconds)
        for name, at in list(self._at.items()):
            if at > now:
                self._at[name] = now
            elif at <= oldest:
                del self._at[name]
        return tuple(at for at in self._at.values() if at > since)

    def _follow(self, _db: sqlite3.Connection, machine: Machine) -> Callable[[], None]:
        return lambda: self._keep(machine)

    def _keep(self, machine: Machine) -> None:
        at = ordered_at(machine)
        if at is None:
            self._at.pop(machine.name, None)
        else:
            self._at[machine.name] = at.astimezone(UTC)
