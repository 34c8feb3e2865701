"""How often each source is read: quickly while somebody waits for its news, slowly else."""

from __future__ import annotations

from collections import Counter

from meshd.daemon.live_settings import LiveSettings
from meshd.model.machine import Phase
from meshd.store.journal import Journal

SLURM_FAST_S = 0.25
"""While a node is about to turn up: a matter of seconds."""
SLURM_BRISK_S = 1.0
"""While a node waits for its jobs: it may be days."""
CLOUD_FAST_S = 2.0
CLOUD_SPACING_S = 1.0
"""The least time between two listings of a cloud: 50 launches that end within it are one listing."""
LISTED_PER_S = 200.0
"""Machines that are listed per second in the long run: 10,000 once in 50 s. A listing of EC2 takes 0.18 ms of CPU for
each (docs/benchmarks.md), so this holds it at 4 % of one core."""
LISTED_FAST_PER_S = 2000.0
"""The same while somebody waits for a cloud's news: 10,000 once in 5 s."""

_CLOUD_AWAITED = frozenset({Phase.LAUNCHING, Phase.TERMINATING})


class PollIntervals:
    """Looks at the journal once for each of its revisions."""

    def __init__(self, journal: Journal, live: LiveSettings) -> None:
        self._journal = journal
        self._live = live
        self._revision = -1
        self._slurm_fastest_s = float("inf")
        self._clouds_awaited: frozenset[str] = frozenset()
        self._machines: Counter[str] = Counter()

    def _look(self) -> None:
        if self._revision == self._journal.revision:
            return
        self._revision = self._journal.revision
        machines = self._journal.machines()
        # A machine on a slot that a person has closed may stay TESTING for days.
        tested = any(m.phase is Phase.TESTING and m.unfit_reason is None for m in machines)
        leaving = any(m.phase is Phase.DRAINING for m in machines)
        self._slurm_fastest_s = SLURM_FAST_S if tested else SLURM_BRISK_S if leaving else float("inf")
        self._clouds_awaited = frozenset(m.provider for m in machines if m.phase in _CLOUD_AWAITED)
        self._machines = Counter(m.provider for m in machines)

    def slurm_s(self) -> float:
        """Seconds between two looks at Slurm."""
        self._look()
        return min(self._slurm_fastest_s, self._live.settings.slurm.poll_interval_s)

    def cloud_s(self, provider: str) -> float:
        """Seconds between two listings of a cloud; more where it has many machines, since a listing reads them all."""
        self._look()
        interval_s, count = self._live.settings.timing.provider_poll_interval_s, self._machines[provider]
        if provider in self._clouds_awaited:
            return max(min(CLOUD_FAST_S, interval_s), count / LISTED_FAST_PER_S)
        return max(interval_s, count / LISTED_PER_S)

    def cloud_spacing_s(self, provider: str) -> float:
        """The least seconds between two listings of a cloud, however much somebody hurries."""
        self._look()
        spacing_s = min(CLOUD_SPACING_S, self._live.settings.timing.provider_poll_interval_s)
        return max(spacing_s, self._machines[provider] / LISTED_FAST_PER_S)
