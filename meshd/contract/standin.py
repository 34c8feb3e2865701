"""A stand-in for a cloud's HTTP API: what the cloud does, and around it the faults that were ordered.

A stand-in is a subclass of `StandIn` that names its routes and words its refusals; this class takes the faults, spoils
answers before or after the call has had its effect, and holds back slow ones.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from aiohttp import web

from meshd.contract.faults import AFTER, CUTS, Fault, FaultEngine, Kind, Struck

#: What a gateway in front of an API says when it has lost the API.
GATEWAY_PAGE = "<html><head><title>502 Bad Gateway</title></head><body>gateway</body></html>"
#: The items on a page of a list that comes in small pages.
SMALL_PAGE = 2
#: The faults of the request that the current task answers.
_STRUCK: ContextVar[Struck] = ContextVar("struck")


class Refused(Exception):
    """The cloud's own kind of no.

    Attributes:
        status: the HTTP status.
        body: the answer, as JSON.
        headers: more headers of the answer.
    """

    def __init__(
        self, status: int, body: Any, headers: Mapping[str, str] | None = None, content_type: str = "application/json"
    ) -> None:
        self.status = status
        self.body = body
        self.headers = dict(headers or {})
        self._content_type = content_type
        super().__init__(f"HTTP {status}")

    def after(self, wait_s: float) -> Refused:
        """The same with Retry-After; 0 for none."""
        if wait_s:
            self.headers["Retry-After"] = f"{wait_s:g}"
        return self

    def response(self) -> web.Response:
        """As an answer."""
        return web.json_response(self.body, status=self.status, headers=self.headers, content_type=self._content_type)


class StandIn(ABC):
    """One cloud's API as an aiohttp application. Must be made inside the running event loop.

    Args:
        faults: what goes wrong.
    """

    #: The largest body that is taken.
    body_max_b = 1024**2

    def __init__(self, faults: FaultEngine) -> None:
        self.faults = faults
        self._closing = asyncio.Event()

    @abstractmethod
    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """What the API has."""

    @abstractmethod
    def operation_of(self, request: web.Request) -> str:
        """The contract's name of a call: launch, get, list, terminate, offers, prices, check or other."""

    async def operation_in(self, request: web.Request) -> str:
        """As `operation_of`, for an API whose paths do not tell: it may read the body."""
        return self.operation_of(request)

    @abstractmethod
    def refusal(self, fault: Fault) -> Refused:
        """The cloud's words for a fault that refuses, or for an internal error of status `fault.status`."""

    def refusal_to(self, request: web.Request, fault: Fault) -> Refused:
        """As `refusal`, for a cloud that words it by the request."""
        return self.refusal(fault)

    @abstractmethod
    def no_such_path(self) -> Refused:
        """The cloud's words for a path or a method that it does not have."""

    def admit(self, request: web.Request, operation: str) -> Mapping[str, str]:
        """Let a request in; returns headers for its answer.

        Raises:
            Refused: the credential is wrong, or there were too many requests.
        """
        return {}

    def permissions_of(self, request: web.Request) -> Iterable[str]:
        """The permissions that a call needs, as the vendor calls them; none where a key may do everything."""
        return ()

    def denial(self, permission: str) -> Refused:
        """The cloud's words when the credential lacks a permission."""
        return self.no_such_path()

    def refuses_itself(self, operation: str, fault: Fault) -> bool:
        """Whether the handler words this refusal, e.g. because the cloud tells it later than in the answer."""
        return False

    @property
    def struck(self) -> Struck:
        """The faults of the request that is being answered."""
        return _STRUCK.get()

    def page_of(self, most: int, cursor: str | None) -> int:
        """How many items the page of a list may have that begins at `cursor`; `most` when nothing is wrong.

        Raises:
            Refused: the page fails.
        """
        looks = self.struck.looks
        if Kind.PAGE_FAILS in looks and cursor:
            raise self.refusal(Fault(Kind.ERROR_BEFORE))
        return SMALL_PAGE if looks & {Kind.SMALL_PAGES, Kind.PAGE_FAILS} else most

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(middlewares=[self._middleware], client_max_size=self.body_max_b)
        app.add_routes(self.routes())
        return app

    def close(self) -> None:
        """Let slow answers go."""
        self._closing.set()

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        operation = await self.operation_in(request)
        struck = self.faults.take(operation)
        _STRUCK.set(struck)
        headers: Mapping[str, str] = {}
        try:
            headers = self.admit(request, operation)
            if lacking := self.faults.denied(*self.permissions_of(request)):
                raise self.denial(lacking)
            if struck.before is not None and not self.refuses_itself(operation, struck.before):
                return self._spoiled(request, struck.before)
            response = await handler(request)
        except Refused as refused:
            response = refused.response()
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
            response = self.no_such_path().response()
        response.headers.update(headers)
        if struck.after is None:
            return response
        if struck.after.kind is not Kind.SLOW:
            return self._spoiled(request, struck.after)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), struck.after.seconds)
        return response

    def _spoiled(self, request: web.Request, fault: Fault) -> web.Response:
        if fault.kind in CUTS:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()  # to nobody
        if fault.kind in (Kind.HTML, Kind.HTML_AFTER):
            status = 200 if fault.kind in AFTER else 502
            return web.Response(text=GATEWAY_PAGE, content_type="text/html", status=status)
        return self.refusal_to(request, fault).after(fault.seconds if fault.kind is Kind.THROTTLED else 0).response()


async def json_object(request: web.Request, otherwise: Refused) -> dict[str, Any]:
    """The body, which must be a JSON object.

    Raises:
        Refused: it is none: `otherwise`.
    """
    try:
        body = await request.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise otherwise
    return body
