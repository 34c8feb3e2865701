"""The metrics' page over TCP, for as long as the daemon lives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from meshd.api.listen import SocketError
from meshd.api.metrics import MetricsServer
from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.reporting import Reporter, problem
from meshd.obs.metrics import Metrics
from meshd.runtime.clock import Clock

RETRY_S = 15.0
log = structlog.get_logger(__name__)


class MetricsService(Reporter):
    """Serves the metrics where the settings say. An address that is taken stops nothing else: it is tried again.

    Args:
        metrics: what is served.
        live: the settings: the address, or none.
        clock: for the pause between two tries.
    """

    def __init__(self, metrics: Metrics, live: LiveSettings, clock: Clock) -> None:
        self._metrics = metrics
        self._live = live
        self._clock = clock
        self._problem = ""

    def problems(self) -> Iterable[ProblemView]:
        """Why nobody can read them."""
        if self._problem:
            cure = "free the address, or set metrics.listen to another one"
            yield problem(ProblemCode.METRICS_NOT_SERVED, "warning", self._problem, cure)

    async def run(self) -> None:
        """Serve until cancelled."""
        address = self._live.settings.metrics.address
        if address is None:
            await asyncio.Event().wait()
            return
        while True:
            server = MetricsServer(self._metrics.registry)
            try:
                await server.start(*address)
            except SocketError as error:
                if not self._problem:
                    log.warning("metrics_not_served", reason=str(error))
                self._problem = f"the metrics are not served: {error}"
                await self._clock.sleep(RETRY_S)
                continue
            self._problem = ""
            try:
                await asyncio.Event().wait()
            finally:
                await server.stop()
