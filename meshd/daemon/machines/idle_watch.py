"""Gives back machines that nobody uses: looks at Slurm in each tick, and lowers the target when the time has come."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from meshd.daemon.machines.store import MachineStore
from meshd.model.desired import Desired
from meshd.model.observed import Snapshot
from meshd.plan.grow import amount
from meshd.plan.idle import give_back, idle_since
from meshd.plan.plan_input import ClusterView


class IdleWatch:
    """Remembers since when each machine is idle; a restart of meshd begins anew."""

    def __init__(
        self, machine_store: MachineStore, desired: Callable[[], Desired], busy: Callable[[], Collection[str]]
    ) -> None:
        self._machine_store = machine_store
        self._desired = desired
        self._busy = busy
        self._idle: dict[str, datetime] = {}

    def look(self, snapshot: Snapshot, now: datetime) -> None:
        """At most one machine a pool and tick is given back. Raises StoreError."""
        desired = self._desired()
        timed = [pool for pool in desired.pools.values() if pool.idle_timeout_s is not None]
        names = {pool.name for pool in timed}
        machines = [m for m in self._machine_store.journal.machines() if m.pool in names] if names else []
        self._idle = idle_since(self._idle, machines, ClusterView.of(snapshot, desired.policy, now)) if machines else {}
        for pool in timed:
            target = desired.targets.get(pool.name)
            found = give_back(pool, target, [m for m in machines if m.pool == pool.name], self._idle, now)
            if found and found.machine.name not in self._busy():
                # The machine first: were meshd killed in between, the target would call it back.
                name, reason = found.machine.name, f"{found.reason}: it is given back"
                self._machine_store.change(name, "remove", reason, removal="surplus", reason=reason)
                if found.target is None:
                    continue
                text = f"{pool.name} shall have {amount(found.target.gpus, pool)}: {found.reason}"
                self._machine_store.journal.set_target(found.target, text, now)
