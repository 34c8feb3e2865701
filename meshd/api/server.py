"""The API on a unix socket. Everybody on the machine may connect; what a caller may do depends on its user."""

from __future__ import annotations

import os
from pathlib import Path

import structlog
from aiohttp import web

from meshd.api.auth import Authorizer, uid_of
from meshd.api.connections import ConnectionLimiter, ConnectionLimits, share
from meshd.api.handlers import Handlers
from meshd.api.listen import SocketError, clear_stale, identity
from meshd.api.middleware import error_documents, throttled
from meshd.api.monitoring import MonitoringPages
from meshd.api.routes import Routes
from meshd.runtime.clock import Clock

log = structlog.get_logger(__name__)

BODY_MAX_B = 64 * 1024
SOCKET_MODE = 0o666
EACH_USER = 64
"""Connections of one user; half of them may wait for events."""
_SHUTDOWN_TIMEOUT_S = 5.0


class HeadApiServer:
    """Serves the endpoints. `start` and `stop` once each."""

    def __init__(
        self, handlers: Handlers, *, path: Path, authorizer: Authorizer, monitoring: MonitoringPages, clock: Clock
    ) -> None:
        self._handlers = handlers
        self._path = path
        self._authorizer = authorizer
        self._monitoring = monitoring
        self._clock = clock
        self._runner: web.AppRunner | None = None
        self._routes: Routes | None = None
        self._ours: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            SocketError: another meshd listens there, or the path cannot be used.
        """
        clear_stale(self._path)
        own_uid = os.getuid()
        # Root and meshd's own user must always get through: no limits for them.
        limiter = ConnectionLimiter(
            "api", ConnectionLimits(total=share(1 / 8, 1024), each=EACH_USER), uid_of, free=frozenset({0, own_uid})
        )
        app = web.Application(
            client_max_size=BODY_MAX_B, middlewares=[limiter.middleware(), error_documents, throttled(own_uid)]
        )
        self._routes = Routes(self._handlers, self._authorizer, self._monitoring, self._clock)
        self._routes.add_to(app)
        self._runner = limiter.runner(app, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_TIMEOUT_S)
        await self._runner.setup()
        try:
            await web.UnixSite(self._runner, self._path, backlog=limiter.backlog).start()
            self._path.chmod(SOCKET_MODE)
        except OSError as error:
            await self._runner.cleanup()
            raise SocketError(f"{self._path} cannot be listened on: {error.strerror}") from error
        self._ours = identity(self._path)
        log.info("api_listens", socket=str(self._path), group=self._authorizer.group)

    async def stop(self) -> None:
        """Take no new requests, let the present ones finish, and remove the socket file if it is ours."""
        if self._runner is None or self._routes is None:
            return
        self._routes.close()
        await self._runner.cleanup()
        self._runner = None
        if self._ours is not None and identity(self._path) == self._ours:
            self._path.unlink(missing_ok=True)
