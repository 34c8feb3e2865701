"""Which clouds are waited for since an older journal was restored, and the problem that they are."""

from __future__ import annotations

from collections.abc import Iterable

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.reporting import Reporter, problem
from meshd.model.desired import Policy
from meshd.model.host import PROVIDER
from meshd.model.observed import Snapshot
from meshd.model.restored import Restored
from meshd.plan.restored import cure, listed_since
from meshd.runtime.clock import Clock
from meshd.store.restores import Restores


class RestoreWatch(Reporter):
    """Writes down which clouds were listed.

    Args:
        restores: the journal's.
        live: the settings: the clouds and the pools, also those of a cloud that is off because of a fault.
        clock: time.
    """

    def __init__(self, restores: Restores, live: LiveSettings, clock: Clock) -> None:
        self._restores, self._live, self._clock = restores, live, clock

    def current(self) -> Restored | None:
        """What is waited for; None: nothing. Reads memory only."""
        restore = self._restores.current
        if restore is None:
            return None
        settings, clouds = self._live.settings, self._clouds()
        unlisted = clouds - set(restore.settled)
        pools = {name for name, pool in settings.pools.items() if unlisted.intersection(pool.providers or clouds)}
        return Restored(restore.at, frozenset(unlisted), frozenset(pools)) if unlisted else None

    def look(self, snapshot: Snapshot, policy: Policy) -> None:
        """Note what was listed. Raises StoreError."""
        if self._restores.current is None:
            return
        restored, now = self.current(), self._clock.now()
        if restored is not None and (found := listed_since(restored, snapshot, policy, now)):
            self._restores.listed(found, now)
            restored = self.current()
        if restored is None:
            self._restores.forget()

    def release(self, cloud: str, by: str) -> bool:
        """Do not wait for a cloud any longer; whether it was waited for. Raises StoreError."""
        restored = self.current()
        if restored is None or cloud not in restored.unlisted:
            return False
        self._restores.release(cloud, by, self._clock.now())
        return True

    @property
    def clouds(self) -> frozenset[str]:
        """Those of the settings."""
        return frozenset(self._clouds())

    def _clouds(self) -> set[str]:
        tables = self._live.settings.providers
        return {name for name, table in tables.items() if table.enabled and name != PROVIDER}

    def problems(self) -> Iterable[ProblemView]:
        """Each cloud that is waited for."""
        restored = self.current()
        if restored is None:
            return
        for cloud in sorted(restored.unlisted):
            text = f"nothing is ended at {cloud}, and pools that may use it rent nothing: {restored.words((cloud,))}"
            yield problem(ProblemCode.RESTORED_UNLISTED, "error", text, cure((cloud,)), since=restored.at)
