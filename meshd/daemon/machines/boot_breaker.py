"""Stops the renting from an offer, a place or for a pool whose machines fail one after another.

The offer cools down first. A region, a provider and the pool follow only when the failures span two
offers, regions or providers; the pool also when failures have left it no offer at all.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machines.store import MachineStore
from meshd.model.desired import TRIED_ALONE, Cooldown, CooldownCause, Desired, Target
from meshd.model.machine import Machine
from meshd.model.observed import Snapshot
from meshd.plan.backoff import FORGET_AFTER_S, BootPolicy, failures_in_row, tripped
from meshd.plan.failure_rules import counts_in_a_row, scopes
from meshd.plan.placement import cooldown_of, usable
from meshd.plan.plan_input import LONG_AGO


class BootBreaker:
    """Looks at what failed before each plan: a machine that just failed may be the one too many to be replaced.

    Args:
        records: where cooldowns are written.
        timing: how many failures, and for how long.
        desired: pools, targets and cooldowns of now.
    """

    def __init__(self, machine_store: MachineStore, live: LiveSettings, desired: Callable[[], Desired]) -> None:
        self._machine_store = machine_store
        self._live = live
        self._desired = desired
        self._revision = -1
        self._rented: dict[str, list[Machine]] = {}

    def look(self, snapshot: Snapshot, now: datetime) -> None:
        """Journal the cooldowns that follow from what failed. Raises StoreError."""
        journal = self._machine_store.journal
        if self._revision != journal.revision:  # a tick in which nothing was written reads no disk
            pools = {m.pool for m in journal.machines() if m.failure and counts_in_a_row(m.failure_cause)}
            self._rented = {pool: journal.rented_of_pool(pool) for pool in pools}
            self._revision = journal.revision
        for pool, rented in self._rented.items():
            self._look_at(pool, rented, snapshot, now)

    def _look_at(self, pool: str, rented: list[Machine], snapshot: Snapshot, now: datetime) -> None:
        journal, timing = self._machine_store.journal, self._live.settings.timing
        policy = BootPolicy(timing.breaker_failures, timing.breaker_cooldown_s, timing.no_capacity_cooldown_max_s)
        target = journal.targets().get(pool)
        said = target.at if target is not None and target.at is not None else LONG_AGO
        since = max(said, now - timedelta(seconds=FORGET_AFTER_S))
        by_scope: dict[tuple[int, str], list[Machine]] = {}
        for machine in rented:
            for level, key in enumerate(scopes(pool, machine.offer)):
                by_scope.setdefault((level, key), []).append(machine)
        for (level, key), machines in sorted(by_scope.items(), key=lambda one: one[0]):
            part = _part(level) if level else None
            if key == f"pool:{pool}" and self._nothing_left(pool, snapshot, now):
                part = None
            cooldown = tripped(key, machines, since, journal.last_cooldown(key), now, policy, part)
            if cooldown is not None:
                self._machine_store.set_cooldown(cooldown)
                self._remember(failures_in_row(machines, since), cooldown)

    def _remember(self, failed: list[Machine], cooldown: Cooldown) -> None:
        """Hold a place's failures against the offers too: what is tried first after it is one that did not fail."""
        timing, journal = self._live.settings.timing, self._machine_store.journal
        for machine in failed:
            key = f"offer:{machine.offer.key}"
            last = journal.last_cooldown(key)
            known = last is not None and last.cause in TRIED_ALONE and machine.created_at < last.until
            if key != cooldown.key and not known:
                wait_s, most_s = timing.breaker_cooldown_s, timing.no_capacity_cooldown_max_s
                self._machine_store.refused(key, wait_s, most_s, cooldown.reason, cause=CooldownCause.BOOTS)

    def _nothing_left(self, pool: str, snapshot: Snapshot, now: datetime) -> bool:
        """Whether failures, and nothing else, have left the pool no offer."""
        desired = self._desired()
        if pool not in desired.pools:
            return False
        wanted = desired.pools[pool]
        target = desired.target(wanted) or Target(pool, 0)
        fit = usable(snapshot.known_offers, wanted, target, {}, now)
        cooldowns = [cooldown_of(offer, desired.cooldowns, now, pool) for offer in fit]
        return bool(fit) and all(cooldown is not None and cooldown.cause in TRIED_ALONE for cooldown in cooldowns)


def _part(level: int) -> Callable[[Machine], str]:
    """What a scope of this level is made of."""
    return lambda machine: scopes(machine.pool, machine.offer)[level - 1]
