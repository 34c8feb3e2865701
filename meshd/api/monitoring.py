"""What Prometheus reads: the metrics, and where the exporters of nodes are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.aiohttp import make_aiohttp_handler

from meshd.api.connections import ConnectionLimiter, ConnectionLimits, address_of, share
from meshd.api.faults import BadRequest
from meshd.api.listen import listen_tcp
from meshd.api.middleware import error_documents

METRICS, TARGETS = "/metrics", "/v1/targets"
EXPORTERS = ("node", "dcgm", "nvidia_gpu")
"""What a node may run: node_exporter, NVIDIA's dcgm-exporter, nvidia_gpu_exporter."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ExporterTarget:
    """One exporter of one node.

    Attributes:
        exporter: one of EXPORTERS.
        address: HOST:PORT.
        labels: of the node.
    """

    exporter: str
    address: str
    labels: dict[str, str]

    def group(self) -> dict[str, object]:
        """As Prometheus's http_sd wants it."""
        return {"targets": [self.address], "labels": {"exporter": self.exporter, **self.labels}}


@dataclass(frozen=True, slots=True)
class MonitoringPages:
    """The pages. Everybody who reaches the server may read them.

    Attributes:
        registry: the metrics.
        targets: all exporters, as of now.
    """

    registry: CollectorRegistry
    targets: Callable[[], Sequence[ExporterTarget]]

    def add_to(self, app: web.Application) -> None:
        """Register both."""
        app.router.add_get(METRICS, make_aiohttp_handler(self.registry))
        app.router.add_get(TARGETS, self._targets)

    async def _targets(self, request: web.Request) -> web.Response:
        asked = request.query.getall("exporter", [])
        if unknown := set(asked) - set(EXPORTERS):
            raise BadRequest(f"no exporter {sorted(unknown)[0][:40]!r}", f"one of {', '.join(EXPORTERS)}")
        found = [one for one in self.targets() if not asked or one.exporter in asked]
        return web.json_response([one.group() for one in found])


class MetricsServer:
    """Serves the pages over TCP, for a Prometheus that cannot reach the unix socket. `start` and `stop` once each."""

    def __init__(self, pages: MonitoringPages) -> None:
        limits = ConnectionLimits(total=share(1 / 16, 64), each=8, burst=20, every_s=0.5, answer_s=60.0)
        self._connections = ConnectionLimiter("metrics", limits, address_of)
        app = web.Application(middlewares=[self._connections.middleware(), error_documents])
        pages.add_to(app)
        self._runner = self._connections.runner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses for port 0.

        Raises:
            SocketError: the address cannot be listened on.
        """
        bound = await listen_tcp(self._runner, host, port, self._connections.backlog)
        log.info("metrics_listen", host=host, port=bound)
        return bound

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()
