"""Serves the table of endpoints over HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, get_origin

import structlog
from aiohttp import web
from pydantic import BaseModel

from meshd.api import openapi
from meshd.api.auth import UNKNOWN_ACTOR, Actor, Authorizer, peer_of
from meshd.api.endpoints import CALLER, ENDPOINTS, Endpoint, ReadByMembers, Write
from meshd.api.faults import Denied, NotReady, TooMany
from meshd.api.handlers import Handlers
from meshd.api.monitoring import MonitoringPages
from meshd.api.schema import CallerView, Document, Request
from meshd.runtime.clock import Clock
from meshd.runtime.singleflight import SingleFlight

log = structlog.get_logger(__name__)

ACCOUNTS_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 30.0
SHARED_S = 1.0
"""A shared answer is at most this old, and never older than the handlers' revision."""
POLLS_PER_USER = 32


class Routes:
    """Serves the table of endpoints: reads the request, checks the caller, calls the handler, writes the answer."""

    def __init__(self, handlers: Handlers, authorizer: Authorizer, monitoring: MonitoringPages, clock: Clock) -> None:
        handlers.check()
        self._handlers = handlers
        self._clock = clock
        self._authorizer = authorizer
        self._monitoring = monitoring
        self._polls: Counter[int] = Counter()
        self._closing = asyncio.Event()

    def add_to(self, app: web.Application) -> None:
        """Register every page."""
        self._monitoring.add_to(app)
        app.router.add_get(openapi.PAGE, _openapi)
        for endpoint in ENDPOINTS:
            add = app.router.add_get if endpoint.method == "GET" else app.router.add_post
            for path in (endpoint.path, *endpoint.formerly):
                add(path, self._page(endpoint))

    def close(self) -> None:
        """End the requests that wait for events."""
        self._closing.set()

    def _page(self, endpoint: Endpoint[Any, Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        if endpoint is CALLER:
            return self._caller
        if endpoint.shared:
            return self._shared_page(endpoint)
        serve = self._read
        if isinstance(endpoint, Write):
            serve = self._write
        elif isinstance(endpoint, ReadByMembers):
            serve = self._read_by_member

        async def page(request: web.Request) -> web.Response:
            return await serve(endpoint, request)

        return page

    def _shared_page(self, endpoint: Endpoint[Any, Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        usual = endpoint.request() if endpoint.request else None

        async def make() -> bytes:
            return _written(await self._answer(endpoint, usual))

        shared = SingleFlight(make, SHARED_S, self._clock, lambda: self._handlers.revision)

        async def page(request: web.Request) -> web.Response:
            if await _request(endpoint, request) == usual:
                return _response(await shared())
            return await self._read(endpoint, request)

        return page

    async def _read(self, endpoint: Endpoint[Any, Any], request: web.Request) -> web.Response:
        asked = await _request(endpoint, request)
        if asked is None or not asked.waits_s():
            return _json(await self._answer(endpoint, asked))
        return _json(await self._poll(endpoint, asked, request))

    async def _read_by_member(self, endpoint: Endpoint[Any, Any], request: web.Request) -> web.Response:
        """Answer those who may write, and log who read what."""
        actor = await self._actor(request)
        asked = await _request(endpoint, request)
        outcome = "accepted" if actor.may_write else "denied"
        log.info("api_read", action=endpoint.name, uid=actor.uid, user=actor.user, pid=actor.pid, outcome=outcome)
        if not actor.may_write:
            raise self._denied(actor, "may not see logs: they can hold other users' words")
        return _json(await self._answer(endpoint, asked))

    def _denied(self, actor: Actor, what: str) -> Denied:
        return Denied(
            f"{actor.user} {what}",
            f"use root, or `usermod -aG {self._authorizer.group} {actor.user}` and log in again",
        )

    async def _answer(self, endpoint: Endpoint[Any, Any], asked: Request | None) -> Document:
        async with asyncio.timeout((asked.waits_s() if asked else 0.0) + READ_TIMEOUT_S):
            return await self._handlers.call(endpoint, asked)

    async def _poll(self, endpoint: Endpoint[Any, Any], asked: Request, request: web.Request) -> Document:
        """Answer a request that waits for something. One user may have a few of them, and a stop ends them all."""
        peer = peer_of(_socket(request))
        uid = peer.uid if peer else -1
        if self._polls[uid] >= POLLS_PER_USER:
            raise TooMany(f"{POLLS_PER_USER} requests of this user wait for events", "end a `meshctl events --follow`")
        self._polls[uid] += 1
        try:
            return await self._or_closing(self._answer(endpoint, asked))
        finally:
            self._polls[uid] -= 1

    async def _write(self, endpoint: Endpoint[Any, Any], request: web.Request) -> web.Response:
        actor = await self._actor(request)
        asked = await _request(endpoint, request)
        if asked.only_looks():
            async with asyncio.timeout(READ_TIMEOUT_S):
                return _json(await self._handlers.call(endpoint, asked, actor))
        return _json(await self._audited(endpoint, asked, actor))

    async def _or_closing(self, ask: Coroutine[Any, Any, Document]) -> Document:
        closing = asyncio.create_task(self._closing.wait())
        asked = asyncio.create_task(ask)
        try:
            await asyncio.wait({closing, asked}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            raise NotReady("meshd is stopping", "try again in a few seconds")
        finally:
            closing.cancel()
            asked.cancel()

    async def _caller(self, request: web.Request) -> web.Response:
        actor = await self._actor(request)
        return _json(
            CallerView(uid=actor.uid, user=actor.user, may_write=actor.may_write, group=self._authorizer.group)
        )

    async def _actor(self, request: web.Request) -> Actor:
        """Who asks. If the account database does not answer in time, because it is a slow network service: nobody."""
        try:
            async with asyncio.timeout(ACCOUNTS_TIMEOUT_S):
                return await asyncio.to_thread(self._authorizer.actor, peer_of(_socket(request)))
        except TimeoutError:
            log.warning("accounts_slow", timeout_s=ACCOUNTS_TIMEOUT_S)
            return UNKNOWN_ACTOR

    async def _audited(self, endpoint: Endpoint[Any, Any], request: Request, actor: Actor) -> Document:
        """Carry out a write if the caller may, and log one line about it in any case."""
        asked = request.model_dump(exclude={"schema_version"}, exclude_defaults=True, mode="json")
        line = log.bind(action=endpoint.name, uid=actor.uid, user=actor.user, pid=actor.pid, request=asked)
        if not actor.may_write:
            line.warning("api_write", outcome="denied")
            raise self._denied(actor, "may look but not change anything")
        outcome = "failed"
        try:
            answer: Document = await self._handlers.call(endpoint, request, actor)
            outcome = "accepted"
            return answer
        finally:
            line.info("api_write", outcome=outcome)


async def _openapi(_request: web.Request) -> web.Response:
    return web.json_response(openapi.document())


def _socket(request: web.Request) -> Any:
    return request.transport.get_extra_info("socket") if request.transport is not None else None


async def _request(endpoint: Endpoint[Any, Any], request: web.Request) -> Any:
    """What is asked for, checked against the endpoint's model; None for an endpoint without parameters."""
    model = endpoint.request
    if model is None:
        return None
    if endpoint.method == "GET":
        values = {name: request.query.getall(name) for name in request.query}
        return model.model_validate({
            name: found[0] if len(found) == 1 and not _is_list(model, name) else found
            for name, found in values.items()
        })  # fmt: skip
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="the body must be application/json")
    return model.model_validate_json(await request.read())


def _is_list(model: type[BaseModel], name: str) -> bool:
    """Whether a parameter is a list, which may be there once or several times."""
    field = model.model_fields.get(name)
    return field is not None and get_origin(field.annotation) in (tuple, list)


def _json(document: BaseModel) -> web.Response:
    return _response(_written(document))


def _written(document: BaseModel) -> bytes:
    return document.model_dump_json().encode()


def _response(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json", charset="utf-8")
