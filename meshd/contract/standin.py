"""The base of a cloud's stand-in: an HTTP server that injects the faults that a test orders.

A subclass names its routes and the cloud's error answers. This class decides which faults hit a call, replaces answers
before or after the call's effect, and delays slow ones.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from aiohttp import web

from meshd.contract.faults import AFTER_EFFECT, CUT_FAULTS, CallFaults, CloudFault, FaultEngine, FaultKind

#: The answer of a gateway that cannot reach the API behind it.
GATEWAY_PAGE = "<html><head><title>502 Bad Gateway</title></head><body>gateway</body></html>"
#: Items per page under FaultKind.SMALL_PAGES.
SMALL_PAGE = 2
#: The faults of the request that the current task answers.
_CALL_FAULTS: ContextVar[CallFaults] = ContextVar("call_faults")


class ErrorResponse(Exception):
    """An error answer of the cloud. A handler raises it; the stand-in sends it.

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

    def after(self, wait_s: float) -> ErrorResponse:
        """Add a Retry-After header; none when `wait_s` is 0."""
        if wait_s:
            self.headers["Retry-After"] = f"{wait_s:g}"
        return self

    def response(self) -> web.Response:
        """The answer to send."""
        return web.json_response(self.body, status=self.status, headers=self.headers, content_type=self._content_type)


class StandIn(ABC):
    """One cloud's API as an aiohttp application. Create it inside the running event loop.

    Args:
        faults: decides which faults hit a call.
    """

    #: The largest request body that is accepted, in bytes.
    body_max_b = 1024**2

    def __init__(self, faults: FaultEngine) -> None:
        self.faults = faults
        self._closing = asyncio.Event()

    @abstractmethod
    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The routes of the API."""

    @abstractmethod
    def operation_of(self, request: web.Request) -> str:
        """The contract's name of a call: launch, get, list, terminate, offers, prices, check, console or other."""

    async def operation_in(self, request: web.Request) -> str:
        """Like `operation_of`; override it for an API whose paths do not say enough. It may read the body."""
        return self.operation_of(request)

    @abstractmethod
    def refusal(self, fault: CloudFault) -> ErrorResponse:
        """The cloud's answer for a fault that refuses the call, or a 5xx with `fault.status`."""

    def refusal_to(self, request: web.Request, fault: CloudFault) -> ErrorResponse:
        """Like `refusal`; override it for a cloud whose answer depends on the request."""
        return self.refusal(fault)

    @abstractmethod
    def no_such_path(self) -> ErrorResponse:
        """The cloud's answer for a path or method that it does not have."""

    def admit(self, request: web.Request, operation: str) -> Mapping[str, str]:
        """Check credential and rate limit; returns headers for the answer.

        Raises:
            ErrorResponse: the credential is wrong, or there were too many requests.
        """
        return {}

    def permissions_of(self, request: web.Request) -> Iterable[str]:
        """The permissions that a call needs, in the vendor's names; none where any key may do everything."""
        return ()

    def denial(self, permission: str) -> ErrorResponse:
        """The cloud's answer when the credential lacks a permission."""
        return self.no_such_path()

    def refuses_itself(self, operation: str, fault: CloudFault) -> bool:
        """Whether the handler applies this fault itself, e.g. because the cloud reports it later."""
        return False

    @property
    def call_faults(self) -> CallFaults:
        """The faults that hit the current request."""
        return _CALL_FAULTS.get()

    def page_of(self, most: int, cursor: str | None) -> int:
        """The number of items on the page that begins at `cursor`; `most` without a fault.

        Raises:
            ErrorResponse: the page fails.
        """
        content_faults = self.call_faults.content
        if FaultKind.PAGE_FAILS in content_faults and cursor:
            raise self.refusal(CloudFault(FaultKind.ERROR_BEFORE))
        return SMALL_PAGE if content_faults & {FaultKind.SMALL_PAGES, FaultKind.PAGE_FAILS} else most

    def app(self) -> web.Application:
        """The application to serve."""
        app = web.Application(middlewares=[self._middleware], client_max_size=self.body_max_b)
        app.add_routes(self.routes())
        return app

    def close(self) -> None:
        """Send the answers that a fault delays."""
        self._closing.set()

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        operation = await self.operation_in(request)
        call_faults = self.faults.take(operation)
        _CALL_FAULTS.set(call_faults)
        headers: Mapping[str, str] = {}
        try:
            headers = self.admit(request, operation)
            if lacking := self.faults.denied(*self.permissions_of(request)):
                raise self.denial(lacking)
            if call_faults.before is not None and not self.refuses_itself(operation, call_faults.before):
                return self._faulty_answer(request, call_faults.before)
            response = await handler(request)
        except ErrorResponse as error:
            response = error.response()
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
            response = self.no_such_path().response()
        response.headers.update(headers)
        if call_faults.after is None:
            return response
        if call_faults.after.kind is not FaultKind.SLOW:
            return self._faulty_answer(request, call_faults.after)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), call_faults.after.seconds)
        return response

    def _faulty_answer(self, request: web.Request, fault: CloudFault) -> web.Response:
        if fault.kind in CUT_FAULTS:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()  # the connection is closed: nobody receives it
        if fault.kind in (FaultKind.HTML, FaultKind.HTML_AFTER):
            status = 200 if fault.kind in AFTER_EFFECT else 502
            return web.Response(text=GATEWAY_PAGE, content_type="text/html", status=status)
        wait_s = fault.seconds if fault.kind is FaultKind.THROTTLED else 0
        return self.refusal_to(request, fault).after(wait_s).response()


async def json_object(request: web.Request, otherwise: ErrorResponse) -> dict[str, Any]:
    """The request's body, which must be a JSON object.

    Raises:
        ErrorResponse: it is not: `otherwise`.
    """
    try:
        body = await request.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise otherwise
    return body
