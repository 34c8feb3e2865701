"""Serves the web page on the head's tailnet address, as long as the settings say so."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import structlog

from meshd.api.listen import SocketError
from meshd.api.schema import ProblemView
from meshd.api.web.pages import Pages
from meshd.api.web.server import WebServer
from meshd.api.web.visitors import Visitors
from meshd.codes import ProblemCode
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.reporting import Reporter, problem
from meshd.runtime.clock import Clock
from meshd.tailnet.watcher import TailnetWatcher

LOOK_INTERVAL_S = 1.0
RETRY_S = 15.0
log = structlog.get_logger(__name__)


class WebService(Reporter):
    """Moves with the head's address and with the settings. An address that is taken stops nothing else.

    Args:
        live: the settings.
        tailnet: knows the head's address and its names.
        pages: what is served.
        visitors: to whom.
        clock: for the pauses.
    """

    def __init__(
        self, live: LiveSettings, tailnet: TailnetWatcher, pages: Pages, visitors: Visitors, clock: Clock
    ) -> None:
        self._live = live
        self._tailnet = tailnet
        self._pages = pages
        self._visitors = visitors
        self._clock = clock
        self._problem = ""
        self._serving: tuple[str, int] | None = None

    def problems(self) -> Iterable[ProblemView]:
        """Why nobody can look."""
        if self._problem:
            cure = "free the address, or set web.port to another one"
            yield problem(ProblemCode.WEB_NOT_SERVED, "warning", self._problem, cure)

    def names(self) -> Collection[str]:
        """Under which names browsers may ask for the page."""
        address, whole = self._serving[0] if self._serving else "", self._tailnet.head_name
        names = (address, whole, whole.partition(".")[0], *(name.lower() for name in self._live.settings.web.names))
        return frozenset(name for name in names if name)

    def wanted(self) -> tuple[str, int] | None:
        """Where to serve: never anywhere else than on the tailnet. While tailscaled is away, where it is served."""
        settings = self._live.settings.web
        if not settings.enabled:
            return None
        address = self._tailnet.head_tailnet_ip or (self._serving[0] if self._serving else "")
        return (address, settings.port) if address else None

    async def run(self) -> None:
        """Serve until cancelled."""
        server: WebServer | None = None
        try:
            while True:
                wanted, pause_s = self.wanted(), LOOK_INTERVAL_S
                if wanted != self._serving:
                    if server is not None:
                        await server.stop()
                    server, self._serving = None, None
                    if wanted is not None and not await self._started(server := self._server(), wanted):
                        server, pause_s = None, RETRY_S
                if wanted is None:
                    self._problem = ""
                await self._clock.sleep(pause_s)
        finally:
            self._serving = None
            if server is not None:
                await server.stop()

    def _server(self) -> WebServer:
        return WebServer(self._pages, self._visitors, self.names, lambda: self._live.settings.web.slurm_web_url)

    async def _started(self, server: WebServer, wanted: tuple[str, int]) -> bool:
        try:
            await server.start(*wanted)
        except SocketError as error:
            if not self._problem:
                log.warning("web_not_served", reason=str(error))
            self._problem = f"the web page is not served: {error}"
            return False
        self._problem, self._serving = "", wanted
        return True
