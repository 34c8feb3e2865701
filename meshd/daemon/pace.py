"""How often each source is read: quickly while somebody waits for its news, slowly else."""

from __future__ import annotations

from collections.abc import Callable

from meshd.config import Settings
from meshd.model.machine import Phase
from meshd.store.journal import Journal

SLURM_FAST_S = 0.25
"""While a node is about to turn up: a matter of seconds."""
SLURM_BRISK_S = 1.0
"""While a node waits for its jobs: it may be days."""
CLOUD_FAST_S = 2.0

_CLOUD_AWAITED = frozenset({Phase.LAUNCHING, Phase.TERMINATING})


class Pace:
    """Looks at the journal once for each of its revisions."""

    def __init__(self, journal: Journal, settings: Callable[[], Settings]) -> None:
        self._journal = journal
        self._settings = settings
        self._revision = -1
        self._slurm_fastest_s = float("inf")
        self._clouds_awaited: frozenset[str] = frozenset()

    def _look(self) -> None:
        if self._revision == self._journal.revision:
            return
        self._revision = self._journal.revision
        machines = self._journal.machines()
        phases = {m.phase for m in machines}
        self._slurm_fastest_s = (
            SLURM_FAST_S if Phase.TESTING in phases else SLURM_BRISK_S if Phase.DRAINING in phases else float("inf")
        )
        self._clouds_awaited = frozenset(m.provider for m in machines if m.phase in _CLOUD_AWAITED)

    def slurm_s(self) -> float:
        """Seconds between two looks at Slurm."""
        self._look()
        return min(self._slurm_fastest_s, self._settings().slurm.poll_interval_s)

    def cloud_s(self, provider: str) -> float:
        """Seconds between two listings of a cloud."""
        self._look()
        interval_s = self._settings().timing.provider_poll_interval_s
        return min(CLOUD_FAST_S, interval_s) if provider in self._clouds_awaited else interval_s
