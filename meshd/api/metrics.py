"""The metrics over TCP, for a Prometheus server that cannot reach the unix socket."""

from __future__ import annotations

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.aiohttp import make_aiohttp_handler

from meshd.api.connections import ConnectionLimiter, ConnectionLimits, address_of, share
from meshd.api.listen import SocketError
from meshd.api.middleware import error_documents

PAGE = "/metrics"
log = structlog.get_logger(__name__)


class MetricsServer:
    """Serves the metrics, to everybody who reaches the address. `start` and `stop` once each."""

    def __init__(self, registry: CollectorRegistry) -> None:
        limits = ConnectionLimits(total=share(1 / 16, 64), each=8, burst=20, every_s=0.5, answer_s=60.0)
        self._connections = ConnectionLimiter("metrics", limits, address_of)
        app = web.Application(middlewares=[self._connections.middleware(), error_documents])
        app.router.add_get(PAGE, make_aiohttp_handler(registry))
        self._runner = self._connections.runner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses for port 0.

        Raises:
            SocketError: the address cannot be listened on.
        """
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, host, port, backlog=self._connections.backlog)
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise SocketError(f"{host} port {port} cannot be listened on: {error.strerror}") from error
        bound: int = self._runner.addresses[0][1]
        log.info("metrics_listen", host=host, port=bound)
        return bound

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()
