"""Stops the renting of a pool, or of one offer, whose machines fail one after another."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from meshd.config import TimingSettings
from meshd.daemon.records import Records
from meshd.model.machine import Machine
from meshd.plan.memory import FORGET_AFTER_S, BootPolicy, tripped
from meshd.plan.world import LONG_AGO


class BootBreaker:
    """Looks at what failed before each plan: a machine that just failed may be the one too many to be replaced."""

    def __init__(self, records: Records, timing: Callable[[], TimingSettings]) -> None:
        self._records = records
        self._timing = timing
        self._revision = -1
        self._rented: dict[str, list[Machine]] = {}

    def look(self, now: datetime) -> None:
        """Journal the blocks that follow from what failed. Raises StoreError."""
        journal = self._records.journal
        if self._revision != journal.revision:  # a tick in which nothing was written reads no disk
            pools = {m.pool for m in journal.machines() if m.failure}
            self._rented = {pool: journal.rented_of_pool(pool) for pool in pools}
            self._revision = journal.revision
        for pool, rented in self._rented.items():
            self._look_at(pool, rented, now)

    def _look_at(self, pool: str, rented: list[Machine], now: datetime) -> None:
        journal, timing = self._records.journal, self._timing()
        policy = BootPolicy(timing.breaker_failures, timing.breaker_cooldown_s, timing.no_capacity_cooldown_max_s)
        target = journal.targets().get(pool)
        said = target.at if target is not None and target.at is not None else LONG_AGO
        since = max(said, now - timedelta(seconds=FORGET_AFTER_S))
        by_offer: dict[str, list[Machine]] = {}
        for machine in rented:
            by_offer.setdefault(f"offer:{machine.offer.key}", []).append(machine)
        for key, machines in {f"pool:{pool}": rented, **by_offer}.items():
            block = tripped(key, machines, since, journal.last_block(key), now, policy)
            if block is not None:
                self._records.block(block)
