"""Looks at the nodes' fitness before each plan: what is forgotten, what was proved, whose log is to be kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from meshd.daemon.machines.store import MachineStore
from meshd.daemon.nodes.logs import NodeLogs
from meshd.daemon.nodes.reports import NodeReports
from meshd.model.desired import CooldownCause, Desired
from meshd.model.machine import Machine
from meshd.model.observed import Snapshot
from meshd.plan.fitness import marked
from meshd.plan.plan_input import ClusterView
from meshd.plan.replace import cooldown_key, proved


class FitnessWatch:
    """See the module.

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
            return  # nobody came, went or was judged anew
        self._revision = self._machine_store.journal.revision
        names = {m.name for m in machines}
        self._reports.keep(names)
        if self._logs is not None:
            unfit = {m.name for m in machines if marked(m) is not None}
            self._logs.keep(names)
            for name in unfit - self._unfit:
                self._logs.want(name)
            self._unfit = {str(name) for name in unfit}

    def _prove(self, machines: list[Machine], snapshot: Snapshot, now: datetime) -> None:
        desired = self._desired()
        for pool in desired.pools:
            key = cooldown_key(pool)
            cooldown = desired.cooldowns.get(key) or desired.expired_cooldowns.get(key)
            if cooldown is not None and cooldown.cause is CooldownCause.UNFIT:
                cluster_view = ClusterView.of(snapshot, desired.policy, now)
                if proved(cooldown, [m for m in machines if m.pool == pool], cluster_view):
                    self._machine_store.journal.lift_cooldowns({key})
