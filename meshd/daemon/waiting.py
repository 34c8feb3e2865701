"""The jobs that wait for machines, as of now: for `meshctl`, for AdminComment, and for people at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection

from meshd.daemon.live_settings import LiveSettings
from meshd.model.desired import Desired
from meshd.model.observed import Snapshot, value_of
from meshd.model.plan import Plan
from meshd.plan.waiting import BootTimes, WaitingJob, waiting_jobs
from meshd.runtime.clock import Clock
from meshd.store.boot_times import boot_times
from meshd.store.journal import Journal

BOOT_TIMES_S = 30.0
"""The least seconds between two looks at how long machines took."""


class WaitingJobs:
    """Calling it returns the jobs. Reads memory, and at times the journal.

    Args:
        live: the settings.
        journal: the machines, and how long earlier ones took.
        desired: what is desired now.
        snapshot: what every source said last.
        plan: the last tick's; None before the first.
        clock: time.
        pod_providers: the providers that rent pods.
    """

    def __init__(
        self,
        live: LiveSettings,
        journal: Journal,
        desired: Callable[[], Desired],
        snapshot: Callable[[], Snapshot],
        plan: Callable[[], Plan | None],
        clock: Clock,
        pod_providers: Collection[str] = (),
    ) -> None:
        self._live = live
        self._journal = journal
        self._desired = desired
        self._snapshot = snapshot
        self._plan = plan
        self._clock = clock
        self._times = BootTimes(pod_providers=frozenset(pod_providers))
        self._read_s = float("-inf")

    def __call__(self) -> tuple[WaitingJob, ...]:
        """The jobs that wait, by id; () while Slurm cannot be read, and before the first tick.

        Raises:
            StoreError: the journal cannot be read.
        """
        snapshot, plan = self._snapshot(), self._plan()
        slurm = value_of(snapshot.slurm)
        if slurm is None or plan is None or not any(job.state in {"CONFIGURING", "PENDING"} for job in slurm.jobs):
            return ()
        partitions = {name: pool.partition or name for name, pool in self._live.settings.pools.items()}
        return waiting_jobs(
            self._desired(), partitions, self._journal.machines(), slurm, plan, snapshot.known_offers,
            self._boot_times(), self._clock.now(),
        )  # fmt: skip

    def _boot_times(self) -> BootTimes:
        now_s = self._clock.monotonic_s()
        if now_s - self._read_s >= BOOT_TIMES_S:
            self._read_s = now_s
            self._times = BootTimes(boot_times(self._journal), self._times.pod_providers)
        return self._times
