"""The client of the unix-socket API: every call has a deadline and ends in a document or a CliError."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from meshd.api.schema import (
    AbortRotationRequest,
    CallerView,
    DoctorView,
    DrainRequest,
    ErrorView,
    EventsQuery,
    EventsView,
    ExplainView,
    MachineAnswer,
    MungeRotationRequest,
    MungeRotationView,
    NodesView,
    OffersQuery,
    OffersView,
    PlanView,
    PricesRefresh,
    PricesRefreshed,
    PricesView,
    ReloadRequest,
    ReloadView,
    RemoveRequest,
    Request,
    RotateKeyRequest,
    RotationView,
    ScaleAnswer,
    ScaleRequest,
    StatusView,
    TokenRenewalRequest,
    TokenRenewalView,
    VersionView,
    WaiveRequest,
)
from meshd.cli.exits import CliError, Exit, UnreachableError

D = TypeVar("D", bound=BaseModel)
Query: TypeAlias = Sequence[tuple[str, str]]

TIMEOUT_S = 60.0
REFRESH_MAX_S = 600.0
"""The most that `prices.refresh_timeout_s` may be."""
_CONNECT_TIMEOUT_S = 5.0
_CODES = {400: Exit.USAGE, 404: Exit.USAGE, 403: Exit.DENIED, 504: Exit.TIMED_OUT}


class Head:
    """A conversation with the daemon. Use as an async context manager."""

    def __init__(self, socket: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self.socket = socket
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Head:
        self._session = aiohttp.ClientSession("http://meshd", connector=aiohttp.UnixConnector(path=str(self.socket)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def status(self) -> StatusView:
        """How the whole stands."""
        return await self._get("/v1/status", StatusView)

    async def nodes(self) -> NodesView:
        """All machines."""
        return await self._get("/v1/nodes", NodesView)

    async def plan(self, request: ScaleRequest | None = None) -> PlanView:
        """What would be done now, or after a request."""
        if request is None:
            return await self._get("/v1/plan", PlanView)
        return await self._post("/v1/plan", request, PlanView)

    async def offers(self, query: OffersQuery) -> OffersView:
        """What can be rented."""
        return await self._get("/v1/offers", OffersView, query=_pairs(query))

    async def explain(self, subject: str) -> ExplainView:
        """What a machine, slot or pool is doing and why."""
        return await self._get("/v1/explain", ExplainView, query=[("subject", subject)])

    async def prices(self) -> PricesView:
        """Which prices are in use."""
        return await self._get("/v1/prices", PricesView)

    async def refresh_prices(self, request: PricesRefresh) -> PricesRefreshed:
        """Fetch prices, for as long as the daemon may take."""
        return await self._post("/v1/prices/refresh", request, PricesRefreshed, extra_s=REFRESH_MAX_S)

    async def scale(self, request: ScaleRequest) -> ScaleAnswer:
        """Set a pool's target."""
        return await self._post("/v1/scale", request, ScaleAnswer)

    async def drain(self, request: DrainRequest) -> MachineAnswer:
        """No new jobs on a node."""
        return await self._post("/v1/drain", request, MachineAnswer)

    async def undrain(self, request: DrainRequest) -> MachineAnswer:
        """Jobs again on a node."""
        return await self._post("/v1/undrain", request, MachineAnswer)

    async def remove(self, request: RemoveRequest) -> MachineAnswer:
        """Give a machine back."""
        return await self._post("/v1/remove", request, MachineAnswer)

    async def reload(self) -> ReloadView:
        """Have the settings read again."""
        return await self._post("/v1/reload", ReloadRequest(), ReloadView)

    async def munge_rotation(self) -> MungeRotationView:
        """The rotation of the munge key."""
        return await self._get("/v1/munge-rotation", MungeRotationView)

    async def rotate_munge_key(self, request: MungeRotationRequest) -> MungeRotationView:
        """Begin, abort or waive."""
        return await self._post("/v1/munge-rotation", request, MungeRotationView)

    async def token_renewal(self) -> TokenRenewalView:
        """The last renewal of node tokens."""
        return await self._get("/v1/token-renewal", TokenRenewalView)

    async def renew_tokens(self, request: TokenRenewalRequest) -> TokenRenewalView:
        """Begin one."""
        return await self._post("/v1/token-renewal", request, TokenRenewalView)

    async def rotation(self) -> RotationView:
        """The rotation of the auth key that is under way, or the last one."""
        return await self._get("/v1/rotation", RotationView)

    async def rotate_key(self, request: RotateKeyRequest) -> RotationView:
        """Begin one."""
        return await self._post("/v1/rotate-key", request, RotationView)

    async def abort_rotation(self) -> RotationView:
        """Take it back."""
        return await self._post("/v1/rotation/abort", AbortRotationRequest(), RotationView)

    async def waive(self, request: WaiveRequest) -> RotationView:
        """Do not wait for a node."""
        return await self._post("/v1/rotation/waive", request, RotationView)

    async def events(self, query: EventsQuery) -> EventsView:
        """Events after an id, or the latest."""
        return await self._get("/v1/events", EventsView, query=_pairs(query), extra_s=query.wait_s)

    async def doctor(self) -> DoctorView:
        """All checks."""
        return await self._get("/v1/doctor", DoctorView)

    async def version(self) -> VersionView:
        """What runs on the head."""
        return await self._get("/v1/version", VersionView)

    async def caller(self) -> CallerView:
        """Who meshd takes us for."""
        return await self._get("/v1/caller", CallerView)

    async def _get(self, path: str, kind: type[D], *, query: Query = (), extra_s: float = 0.0) -> D:
        return await self._ask("GET", path, kind, query=query, timeout_s=self._timeout_s + extra_s)

    async def _post(self, path: str, request: Request, kind: type[D], *, extra_s: float = 0.0) -> D:
        body, timeout_s = request.model_dump_json(exclude_unset=True), self._timeout_s + extra_s
        return await self._ask("POST", path, kind, body=body, timeout_s=timeout_s)

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[D],
        *,
        timeout_s: float,
        query: Query = (),
        body: str | None = None,
    ) -> D:
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(_CONNECT_TIMEOUT_S, timeout_s))
        headers = {"Content-Type": "application/json"} if body is not None else None
        try:
            async with self._session.request(
                method, path, params=list(query), data=body, headers=headers, timeout=timeout
            ) as response:
                text = await response.text()
                status = response.status
        except aiohttp.ClientConnectorError as error:
            raise _cannot_connect(self.socket, error.os_error) from error
        except TimeoutError as error:
            raise UnreachableError(
                f"meshd did not answer on {self.socket} within {timeout_s:g} s" + _may_have_happened(body),
                "see `systemctl status meshd` and `journalctl -u meshd`",
            ) from error
        except aiohttp.ClientError as error:
            raise UnreachableError(
                f"meshd ended the connection on {self.socket} before it answered" + _may_have_happened(body),
                "it may be restarting: see `systemctl status meshd`, then try again",
            ) from error
        if status != 200:
            raise _refused(status, text)
        return self._read(text, kind)

    def _read(self, text: str, kind: type[D]) -> D:
        try:
            return kind.model_validate_json(text)
        except ValidationError as error:
            raise CliError(
                f"what meshd answered on {self.socket} is no {kind.__name__} that this meshctl understands",
                "install the same version on both sides: compare `meshctl version`",
                kind="unreadable",
            ) from error


def _pairs(request: Request) -> Query:
    """A request as a query string: what is not the default, lists as repeated names."""
    given = request.model_dump(mode="json", exclude_defaults=True)
    return [
        (name, _word(one)) for name, value in given.items() for one in (value if isinstance(value, list) else [value])
    ]


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _may_have_happened(body: str | None) -> str:
    return "; the request may have been carried out" if body is not None else ""


def _refused(status: int, text: str) -> CliError:
    code = _CODES.get(status, Exit.FAILED)
    try:
        view = ErrorView.model_validate_json(text)
    except ValidationError:
        return CliError(f"meshd answered HTTP {status} without a reason", "see `journalctl -u meshd`", code=code)
    if view.kind == "not_ready":
        return UnreachableError(view.error, view.cure)
    return CliError(view.error, view.cure, code=code, kind=view.kind)


def _cannot_connect(socket: Path, error: OSError) -> UnreachableError:
    if error.errno == errno.ENOENT:
        return UnreachableError(
            f"meshd is not running: there is no socket {socket}",
            "start it: `systemctl start meshd`; if it runs elsewhere, give its socket with --socket",
        )
    if error.errno == errno.ECONNREFUSED:
        return UnreachableError(
            f"meshd is not running: nobody listens on {socket}",
            "see `systemctl status meshd` and `journalctl -u meshd`, then `systemctl restart meshd`",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return UnreachableError(
            f"{socket} may not be opened by this user",
            f"check with `ls -ld {socket.parent} {socket}`: everybody must be able to reach it "
            "(who may change things is decided by the group)",
        )
    return UnreachableError(
        f"meshd cannot be reached on {socket}: {error.strerror or error}",
        "see `systemctl status meshd`; give another socket with --socket",
    )
