"""Serves the page to the browsers of those who may look.

Nothing comes from elsewhere: no script, style, font or picture. It sets no cookie, and takes GET and HEAD only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from meshd.api.connections import ConnectionLimiter, ConnectionLimits, address_of, share
from meshd.api.faults import ApiFault, BadRequest, Denied, TooMany, TooSlow, answer_to
from meshd.api.listen import listen_tcp
from meshd.api.web.pages import Page, Pages
from meshd.api.web.visitors import Visitors
from meshd.errors import MeshdError
from meshd.plaintext import plain
from meshd.runtime.tokenbucket import TokenBuckets

log = structlog.get_logger(__name__)

ANSWER_S: Final = 20.0
LINE_MAX_B: Final = 2048
"""Of the first line of a request, with the address in it."""
BURST, EVERY_S = 60, 0.25
"""Requests of one address at once, and seconds between further ones."""
PROXIES: Final = (
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "Tailscale-User-Login",
    "Tailscale-Funnel-Request",
)
"""What proxies put into a request, `tailscale serve` and `funnel` among them: its address is not the visitor's then."""
STATIC: Final = {"meshd.css": "text/css", "meshd.js": "text/javascript", "meshd.svg": "image/svg+xml"}
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NAV: Final = (("/", "Overview"), ("/nodes", "Nodes"), ("/jobs", "Jobs"), ("/plots", "Plots"), ("/events", "Events"),
              ("/problems", "Problems"))  # fmt: skip

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """Serves on one address. `start` and `stop` once each.

    Args:
        pages: makes them.
        visitors: who may look.
        names: under which browsers may ask for it: another name is that of an attacker who had it point here.
        slurm_web_url: where Slurm-web is; "" for nowhere.
    """

    def __init__(
        self, pages: Pages, visitors: Visitors, names: Callable[[], Collection[str]], slurm_web_url: Callable[[], str]
    ) -> None:
        self._pages = pages
        self._visitors = visitors
        self._names = names
        self._slurm_web_url = slurm_web_url
        self._buckets = TokenBuckets(BURST, EVERY_S)
        self._templates = Environment(
            loader=PackageLoader("meshd.api.web"), autoescape=True, undefined=StrictUndefined, finalize=_clean,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        # The points of a line are our own numbers, and longer than any text of others may be.
        self._templates.filters["drawn"] = Markup
        static = files("meshd.api.web") / "static"
        self._static = {name: (static / name).read_bytes() for name in STATIC}
        limits = ConnectionLimits(total=share(1 / 16, 128), each=16, burst=40, every_s=0.25, answer_s=2 * ANSWER_S)
        self._connections = ConnectionLimiter("web", limits, address_of)
        app = web.Application(middlewares=[self._connections.middleware(), self._around])
        for path, show in {
            "/": pages.overview, "/nodes": pages.nodes, "/jobs": pages.jobs, "/plots": pages.plots,
            "/events": pages.events, "/problems": pages.problems,
        }.items():  # fmt: skip
            app.router.add_get(path, self._page(show))
        app.router.add_get("/nodes/{name}", self._detail(pages.node))
        app.router.add_get("/jobs/{name}", self._detail(pages.job))
        app.router.add_get("/static/{name}", self._file)
        app.on_response_prepare.append(_no_server_name)
        self._runner = self._connections.runner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1.0, max_line_size=LINE_MAX_B,
        )  # fmt: skip

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses for port 0.

        Raises:
            SocketError: the address cannot be listened on.
        """
        bound = await listen_tcp(self._runner, host, port, self._connections.backlog)
        log.info("web_listens", host=host, port=bound)
        return bound

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    # -- requests -------------------------------------------------------------------------------------------------

    @property
    def _around(self) -> Any:
        @web.middleware
        async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
            """What stands before every page; errors become pages too."""
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._check(request)
                    answer = await handler(request)
            except web.HTTPException as error:
                answer = self._failed(request, error.status, _HTTP.get(error.status, error.reason), "")
                if error.status == 405:
                    answer.headers["Allow"] = ", ".join(_METHODS)
            except TimeoutError:
                answer = self._fault(request, TooSlow("meshd did not answer in time", "try again in a minute"))
            except MeshdError as error:
                answer = self._fault(request, error)
            except Exception:  # the boundary: a fault in one request must not reach another
                log.exception("web_fault", method=request.method, path=request.path[:200])
                answer = self._failed(request, 500, "meshd failed to make this page", "see `journalctl -u meshd`")
            for name, value in HEADERS.items():
                answer.headers.setdefault(name, value)
            return answer

        return around

    async def _check(self, request: web.Request) -> None:
        """Raises ApiFault where a request is not to be answered."""
        address = request.remote or ""
        if not self._buckets.try_take(address, time.monotonic()):
            raise TooMany("your device asks too often", "wait a few seconds")
        if _host_of(request.host) not in self._names():
            raise _Misdirected("this page is not served under that name", "use the head's name on the tailnet")
        if any(name in request.headers for name in PROXIES):
            raise Denied(
                "a proxy asks for you, so nobody knows who you are", "open the head's own address on the tailnet"
            )
        # Before the path is looked at: who may not look learns nothing, not even which pages there are.
        await self._visitors.admit(address)
        if request.method not in _METHODS:
            raise web.HTTPMethodNotAllowed(request.method, _METHODS)

    def _page(self, show: Callable[[Mapping[str, str]], Awaitable[Page]]) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            return await self._shown(request, await show(request.query))

        return answer

    def _detail(self, show: Callable[[str], Awaitable[Page]]) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            name = request.match_info["name"]
            if not 0 < len(name) <= 63:
                raise BadRequest("no node or job has such a name", "see the lists of nodes and jobs")
            return await self._shown(request, await show(name))

        return answer

    async def _shown(self, request: web.Request, page: Page) -> web.Response:
        frame = await self._pages.frame()
        facts = {"title": page.title, "path": request.path, "nav": NAV, "slurm_web_url": self._slurm_web_url()}
        text = self._templates.get_template(page.template).render({**facts, **frame, **page.facts})
        answer = web.Response(text=text, content_type="text/html", charset="utf-8")
        answer.enable_compression()
        return answer

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in STATIC:
            raise web.HTTPNotFound
        headers = {"Cache-Control": "private, max-age=300"}
        return web.Response(body=self._static[name], content_type=STATIC[name], charset="utf-8", headers=headers)

    def _fault(self, request: web.Request, error: MeshdError) -> web.Response:
        status, view = answer_to(error)
        if status >= 500:
            log.warning("web_failed", path=request.path[:200], reason=view.error)
        return self._failed(request, status, view.error, view.cure)

    def _failed(self, request: web.Request, status: int, says: str, cure: str) -> web.Response:
        known = status not in {403, 421, 429}
        facts = {"status": status, "says": says, "cure": cure, "nav": NAV if known else (), "path": request.path}
        text = self._templates.get_template("error.html").render(facts)
        return web.Response(text=text, content_type="text/html", charset="utf-8", status=status)


_METHODS: Final = ("GET", "HEAD")
_HTTP: Final = {404: "there is no such page", 405: "this page only shows things: it takes GET and HEAD alone"}


class _Misdirected(ApiFault):
    """The request is for another server."""

    status = 421
    kind = "misdirected"


def _host_of(header: str) -> str:
    """The name in a Host header, without the port; "" when it is none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _clean(value: object) -> object:
    """What every expression of a template gives: text of others without control characters, and with a bound."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


async def _no_server_name(_request: web.Request, answer: web.StreamResponse) -> None:
    answer.headers["Server"] = "meshd"
