"""The pages of the unix-socket API and who may ask for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.aiohttp import make_aiohttp_handler
from pydantic import BaseModel

from meshd.api.auth import UNKNOWN_ACTOR, Actor, Gate, peer_of
from meshd.api.desk import HeadApi
from meshd.api.faults import Denied, NotReady, TooMany
from meshd.api.metrics import PAGE as METRICS
from meshd.api.schema import (
    AbortRotationRequest,
    CallerView,
    Document,
    DrainRequest,
    EventsQuery,
    ExplainQuery,
    MungeRotationRequest,
    OffersQuery,
    PricesRefresh,
    ReloadRequest,
    RemoveRequest,
    Request,
    RotateKeyRequest,
    ScaleRequest,
    TokenRenewalRequest,
    WaiveRequest,
)

log = structlog.get_logger(__name__)

R = TypeVar("R", bound=Request)

ACCOUNTS_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 30.0
POLLS_PER_USER = 32


class Routes:
    """Handlers: read the request, check the caller, ask the desk, write the answer."""

    def __init__(self, desk: HeadApi, gate: Gate, metrics: CollectorRegistry) -> None:
        self._desk = desk
        self._gate = gate
        self._metrics = metrics
        self._polls: Counter[int] = Counter()
        self._closing = asyncio.Event()

    def add_to(self, app: web.Application) -> None:
        """Register every page."""
        app.router.add_get("/v1/status", self._read(lambda: self._desk.status()))
        app.router.add_get("/v1/nodes", self._read(lambda: self._desk.nodes()))
        app.router.add_get("/v1/plan", self._read(lambda: self._desk.plan(None)))
        app.router.add_get("/v1/doctor", self._read(lambda: self._desk.doctor()))
        app.router.add_get("/v1/version", self._read(lambda: self._desk.version()))
        app.router.add_get(METRICS, make_aiohttp_handler(self._metrics))
        app.router.add_get("/v1/offers", self._look_up(OffersQuery, self._desk.offers))
        app.router.add_get("/v1/explain", self._look_up(ExplainQuery, lambda q: self._desk.explain(q.subject)))
        app.router.add_post("/v1/plan", self._plan)
        app.router.add_get("/v1/events", self._events)
        app.router.add_get("/v1/caller", self._caller)
        app.router.add_post("/v1/scale", self._write("scale", ScaleRequest, self._desk.scale))
        app.router.add_post("/v1/drain", self._write("drain", DrainRequest, self._desk.drain))
        app.router.add_post("/v1/undrain", self._write("undrain", DrainRequest, self._desk.undrain))
        app.router.add_get("/v1/munge-rotation", self._read(lambda: self._desk.munge_rotation()))
        rotate = self._write("rotate-munge-key", MungeRotationRequest, self._desk.rotate_munge_key)
        app.router.add_post("/v1/munge-rotation", rotate)
        app.router.add_get("/v1/token-renewal", self._read(lambda: self._desk.token_renewal()))
        renew = self._write("renew-tokens", TokenRenewalRequest, self._desk.renew_tokens)
        app.router.add_post("/v1/token-renewal", renew)
        app.router.add_get("/v1/prices", self._read(lambda: self._desk.prices()))
        refresh = self._write("refresh_prices", PricesRefresh, self._desk.refresh_prices)
        app.router.add_post("/v1/prices/refresh", refresh)
        app.router.add_post("/v1/remove", self._write("remove", RemoveRequest, self._desk.remove))
        app.router.add_post("/v1/reload", self._write("reload", ReloadRequest, self._desk.reload))
        app.router.add_get("/v1/rotation", self._read(lambda: self._desk.rotation()))
        app.router.add_post("/v1/rotate-key", self._write("rotate-key", RotateKeyRequest, self._desk.rotate_key))
        app.router.add_post(
            "/v1/rotation/abort", self._write("abort-rotation", AbortRotationRequest, self._desk.abort_rotation)
        )
        app.router.add_post("/v1/rotation/waive", self._write("waive", WaiveRequest, self._desk.waive))

    def close(self) -> None:
        """Send those away who wait for events."""
        self._closing.set()

    def _read(self, ask: Callable[[], Awaitable[Document]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(_request: web.Request) -> web.Response:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return _json(await ask())

        return handler

    def _look_up(
        self, kind: type[R], ask: Callable[[R], Awaitable[Document]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            query = _query(request, kind)
            async with asyncio.timeout(READ_TIMEOUT_S):
                return _json(await ask(query))

        return handler

    def _write(
        self, action: str, kind: type[R], do: Callable[[R, Actor], Awaitable[Document]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            actor = await self._actor(request)
            body = await _body(request, kind)
            if body.only_looks():
                async with asyncio.timeout(READ_TIMEOUT_S):
                    return _json(await do(body, actor))
            return _json(await self._audited(action, body, actor, do(body, actor)))

        return handler

    async def _plan(self, request: web.Request) -> web.Response:
        body = await _body(request, ScaleRequest)
        async with asyncio.timeout(READ_TIMEOUT_S):
            return _json(await self._desk.plan(body))

    async def _events(self, request: web.Request) -> web.Response:
        query = _query(request, EventsQuery)
        if query.wait_s == 0:
            return _json(await self._ask_events(query))
        peer = peer_of(_socket(request))
        uid = peer.uid if peer else -1
        if self._polls[uid] >= POLLS_PER_USER:
            raise TooMany(f"{POLLS_PER_USER} requests of this user wait for events", "end a `meshctl events --follow`")
        self._polls[uid] += 1
        try:
            return _json(await self._or_closing(self._ask_events(query)))
        finally:
            self._polls[uid] -= 1

    async def _ask_events(self, query: EventsQuery) -> Document:
        async with asyncio.timeout(query.wait_s + READ_TIMEOUT_S):
            return await self._desk.events(query)

    async def _or_closing(self, ask: Coroutine[Any, Any, Document]) -> Document:
        closing = asyncio.create_task(self._closing.wait())
        asked = asyncio.create_task(ask)
        try:
            await asyncio.wait({closing, asked}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            raise NotReady("meshd stops", "try again in a few seconds")
        finally:
            closing.cancel()
            asked.cancel()

    async def _caller(self, request: web.Request) -> web.Response:
        actor = await self._actor(request)
        return _json(CallerView(uid=actor.uid, user=actor.user, may_write=actor.may_write, group=self._gate.group))

    async def _actor(self, request: web.Request) -> Actor:
        """Who asks. The account database may be a slow network service: no answer in time means nobody."""
        try:
            async with asyncio.timeout(ACCOUNTS_TIMEOUT_S):
                return await asyncio.to_thread(self._gate.actor, peer_of(_socket(request)))
        except TimeoutError:
            log.warning("accounts_slow", timeout_s=ACCOUNTS_TIMEOUT_S)
            return UNKNOWN_ACTOR

    async def _audited(self, action: str, body: Request, actor: Actor, do: Awaitable[Document]) -> Document:
        """Carry out a write that the caller may do, and leave one line about it whatever comes of it."""
        asked = body.model_dump(exclude={"schema_version"}, exclude_defaults=True, mode="json")
        line = log.bind(action=action, uid=actor.uid, user=actor.user, pid=actor.pid, request=asked)
        if not actor.may_write:
            if asyncio.iscoroutine(do):
                do.close()
            line.warning("api_write", outcome="denied")
            raise Denied(
                f"{actor.user} may look but not change anything",
                f"use root, or `usermod -aG {self._gate.group} {actor.user}` and log in again",
            )
        outcome = "failed"
        try:
            answer = await do
            outcome = "accepted"
            return answer
        finally:
            line.info("api_write", outcome=outcome)


def _socket(request: web.Request) -> Any:
    return request.transport.get_extra_info("socket") if request.transport is not None else None


def _query(request: web.Request, kind: type[R]) -> R:
    """The query string; a name that is there several times has a list of values."""
    values = {name: request.query.getall(name) for name in request.query}
    return kind.model_validate({name: found[0] if len(found) == 1 else found for name, found in values.items()})


async def _body(request: web.Request, kind: type[R]) -> R:
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="the body must be application/json")
    return kind.model_validate_json(await request.read())


def _json(document: BaseModel) -> web.Response:
    return web.json_response(text=document.model_dump_json())
