"""Takes a sample of the cluster each minute, for the plots of the web page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from meshd.api import endpoints as e
from meshd.api.handlers import Handlers
from meshd.api.schema import NodesView, StatusView
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.model.machine import Machine
from meshd.plan.samples import MINUTE_S, Figure, Mean, begin
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.store.samples import Samples

MISSED_MAX: Final = timedelta(hours=1)
"""Machines that became READY while meshd was down are counted if that is no longer ago."""


class Sampler(Controller):
    """Writes a sample each minute, while the page is enabled.

    Args:
        live: the settings.
        journal: has the machines, and keeps the samples.
        handlers: know how everything stands.
        clock: time.
    """

    name = "web_samples"

    def __init__(self, live: LiveSettings, journal: Journal, handlers: Callable[[], Handlers], clock: Clock) -> None:
        super().__init__(clock)
        self._live = live
        self._journal = journal
        self._handlers = handlers
        self.samples = Samples(journal)

    async def reconcile(self) -> float | None:
        """Write the sample of this minute, unless there is one."""
        now = self._clock.now()
        if self._live.settings.web.enabled:
            last, minute = self.samples.last(now), begin(now, MINUTE_S)
            if last is None or last < minute:
                status, nodes = await self._handlers().call(e.STATUS), await self._handlers().call(e.NODES)
                found = levels(status, nodes)
                # Those of the minute that is over: each machine counts in one sample.
                since = max(last or minute - timedelta(seconds=MINUTE_S), minute - MISSED_MAX)
                if (joins := join_times(self._journal.machines(), since, minute)) is not None:
                    found[Figure.JOIN_S] = joins
                self.samples.add(now, found)
        return MINUTE_S - now.timestamp() % MINUTE_S


def levels(status: StatusView, nodes: NodesView) -> dict[Figure, Mean]:
    """How everything stands. Where Slurm cannot be read, nobody knows the jobs; without reports, the use of GPUs."""
    pools = [pool for pool in status.pools if pool.unit == "GPU"]
    found = {
        Figure.GPUS_WANTED: sum(pool.wanted_gpus for pool in pools),
        Figure.GPUS_READY: sum(pool.ready_gpus for pool in pools),
        Figure.USD_PER_HOUR: status.spend.usd_per_hour,
    }
    if any(source.name == "slurm" and source.ok for source in status.sources):
        found[Figure.JOBS_RUNNING] = sum(pool.queue.running for pool in status.pools)
        found[Figure.JOBS_PENDING] = sum(pool.queue.pending for pool in status.pools)
    loads = [load for row in nodes.nodes for load in row.gpu_load]
    if loads or not any(row.gpus for row in nodes.nodes):
        found[Figure.GPUS_BUSY] = sum(load.utilization_percent for load in loads) / 100
    return {figure: Mean(float(value)) for figure, value in found.items()}


def join_times(machines: Iterable[Machine], since: datetime, until: datetime) -> Mean | None:
    """How long the machines took that became READY in that time; None where there are none."""
    took = [
        (machine.ready_at - machine.launch_called_at).total_seconds()
        for machine in machines
        if machine.ready_at and machine.launch_called_at and since <= machine.ready_at < until
    ]
    took = [seconds for seconds in took if seconds > 0]
    return Mean(sum(took), len(took)) if took else None
