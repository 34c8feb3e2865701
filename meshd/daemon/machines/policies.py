"""What follows from the past alone, decided before each plan: cooldowns after failures, idle machines, fitness.

A policy journals what it decides, so the plan that is made right after it heeds it already.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from meshd.codes import EventKind
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.executor import Executor
from meshd.daemon.observe.agent_reports import NodeLogs, NodeReports
from meshd.model.cooldown import TRIED_ALONE, Cooldown, CooldownCause, CooldownKey, scopes
from meshd.model.desired import Desired, Target
from meshd.model.machine import Machine, Removal
from meshd.model.observed import Snapshot
from meshd.plan.cooldowns import FORGET_AFTER_S, BootPolicy, failures_in_row, tripped
from meshd.plan.failure_rules import counts_in_a_row
from meshd.plan.guards import leaving_room
from meshd.plan.idle import give_back, idle_since, is_timed
from meshd.plan.placement import amount, cooldown_of, usable
from meshd.plan.plan_input import LONG_AGO, ClusterView
from meshd.plan.replace import proved


class BootBreaker:
    """Cools down an offer, a place or a pool whose machines fail one after another.

    The offer cools down first. A region, a provider and the pool follow only when the failures span two offers,
    regions or providers; the pool also when failures have left it no offer at all. It looks before each plan, since a
    machine that has just failed may be the one that is not to be replaced.

    Args:
        machine_store: where cooldowns are written.
        live: how many failures, and for how long.
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
        said = said if said <= now else LONG_AGO  # the clock was set back
        since = max(said, now - timedelta(seconds=FORGET_AFTER_S))
        by_scope: dict[tuple[int, CooldownKey], list[Machine]] = {}
        for machine in rented:
            for level, key in enumerate(scopes(pool, machine.offer)):
                by_scope.setdefault((level, key), []).append(machine)
        for (level, key), machines in sorted(by_scope.items(), key=lambda one: one[0]):
            part = _part(level) if level else None
            if key == CooldownKey.of_pool(pool) and self._nothing_left(pool, snapshot, now):
                part = None
            cooldown = tripped(key, machines, since, journal.last_cooldown(key), now, policy, part)
            if cooldown is not None:
                self._machine_store.set_cooldown(cooldown)
                self._remember(failures_in_row(machines, since), cooldown)

    def _remember(self, failed: list[Machine], cooldown: Cooldown) -> None:
        """Hold a place's failures against the offers too: what is tried first after it is one that did not fail."""
        timing, journal = self._live.settings.timing, self._machine_store.journal
        for machine in failed:
            key = CooldownKey.of_offer(machine.offer)
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


class IdleWatch:
    """Gives back machines that nobody uses, and lowers the target with them.

    It remembers since when each machine is idle in memory alone: after a restart of meshd the time counts again.
    """

    def __init__(self, machine_store: MachineStore, desired: Callable[[], Desired], executor: Executor) -> None:
        self._machine_store = machine_store
        self._desired = desired
        self._executor = executor
        self._idle: dict[str, datetime] = {}

    def clock_set(self, step: timedelta) -> None:
        """The clock was set: what is idle is so for as long as before."""
        self._idle = {name: at + step for name, at in self._idle.items()}

    def look(self, snapshot: Snapshot, now: datetime) -> None:
        """At most one machine a pool and tick is given back: those that are idle longest first. Raises StoreError."""
        desired = self._desired()
        of_pool: dict[str, list[Machine]] = {}
        for machine in self._machine_store.journal.machines():
            of_pool.setdefault(machine.pool, []).append(machine)
        timed = [p for p in desired.pools.values() if p.name in of_pool and is_timed(p, of_pool[p.name])]
        machines = [machine for pool in timed for machine in of_pool[pool.name]]
        cluster_view = ClusterView.of(snapshot, desired.policy, now)
        by_queue = {pool.name for pool in timed if pool.from_queue}
        self._idle = idle_since(self._idle, machines, cluster_view, by_queue) if machines else {}
        if desired.freeze is not None:
            return
        unlisted = desired.restored.unlisted if desired.restored is not None else frozenset()
        every = [machine for machines_of_one in of_pool.values() for machine in machines_of_one]
        room = leaving_room(desired.guards, every, cluster_view.slurm)
        leave = [
            (pool, found)
            for pool in timed
            if (found := give_back(
                pool, desired.targets.get(pool.name), of_pool[pool.name], self._idle, now, desired.policy.billing
            ))
        ]  # fmt: skip
        leave.sort(key=lambda one: self._idle[one[1].machine.name])
        for pool, found in leave[:room]:
            if found.machine.name not in self._executor.busy and found.machine.provider not in unlisted:
                # The machine first: were meshd killed in between, the target would call it back.
                name, reason = found.machine.name, f"{found.reason}: it is given back"
                self._machine_store.change(name, EventKind.REMOVE, reason, removal=Removal.SCALE_DOWN, reason=reason)
                if found.target is None:
                    continue
                text = f"{pool.name} shall have {amount(found.target.gpus, pool)}: {found.reason}"
                self._machine_store.journal.set_target(found.target, text, now)


class FitnessWatch:
    """Journals which pools' replacements have proved fit, forgets nodes that are gone, and keeps unfit nodes' logs.

    Args:
        logs: asked for the log of each node that has become unfit; None: no log is kept.
    """

    def __init__(
        self,
        machine_store: MachineStore,
        desired: Callable[[], Desired],
        reports: NodeReports,
        logs: NodeLogs | None = None,
    ) -> None:
        self._machine_store = machine_store
        self._desired = desired
        self._reports = reports
        self._logs = logs
        self._unfit: set[str] = set()
        self._revision = -1

    def look(self, snapshot: Snapshot, now: datetime) -> None:
        """Journal what was proved. Raises StoreError."""
        machines = self._machine_store.journal.machines()
        self._prove(machines, snapshot, now)
        if self._revision == self._machine_store.journal.revision:
            return  # no machine came, went or changed its fitness
        self._revision = self._machine_store.journal.revision
        names = {m.name for m in machines}
        self._reports.keep(names)
        if self._logs is not None:
            unfit = {m.name for m in machines if m.unfit_reason is not None}
            self._logs.keep(names)
            for name in unfit - self._unfit:
                self._logs.want(name)
            self._unfit = {str(name) for name in unfit}

    def _prove(self, machines: list[Machine], snapshot: Snapshot, now: datetime) -> None:
        desired = self._desired()
        for pool in desired.pools:
            key = CooldownKey.of_replacements(pool)
            cooldown = desired.cooldowns.get(key) or desired.expired_cooldowns.get(key)
            if cooldown is not None and cooldown.cause is CooldownCause.UNFIT:
                cluster_view = ClusterView.of(snapshot, desired.policy, now)
                if proved(cooldown, [m for m in machines if m.pool == pool], cluster_view):
                    self._machine_store.journal.lift_cooldowns({key})


class Policies:
    """All of them, in the order in which they look.

    Args:
        machine_store: where they write.
        live: the settings.
        desired: pools, targets and cooldowns of now.
        executor: tells which machines have a step in flight.
        reports: what the node agents said last.
        logs: asked for the log of each node that has become unfit; None: no log is kept.
    """

    def __init__(
        self,
        machine_store: MachineStore,
        live: LiveSettings,
        desired: Callable[[], Desired],
        executor: Executor,
        reports: NodeReports,
        logs: NodeLogs | None = None,
    ) -> None:
        self.boots = BootBreaker(machine_store, live, desired)
        self.idle = IdleWatch(machine_store, desired, executor)
        self.fitness = FitnessWatch(machine_store, desired, reports, logs)
        self._reports = reports

    def clock_set(self, step: timedelta) -> None:
        """The clock was set by so much."""
        self.idle.clock_set(step)
        self._reports.forget()

    def look(self, snapshot: Snapshot, now: datetime) -> None:
        """Journal what follows. Raises StoreError."""
        for policy in (self.boots, self.idle, self.fitness):
            policy.look(snapshot, now)


def _part(level: int) -> Callable[[Machine], str]:
    """What a scope of this level is made of."""
    return lambda machine: scopes(machine.pool, machine.offer)[level - 1]
