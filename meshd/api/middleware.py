"""What stands before every page: errors become documents, and one user cannot keep the server busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import structlog
from aiohttp import web
from pydantic import ValidationError

from meshd import errors
from meshd.api.auth import uid_of
from meshd.api.faults import BadRequest, Denied, TooMany, TooSlow, Unknown, answer_to
from meshd.api.schema import ErrorView
from meshd.runtime.tokenbucket import TokenBuckets

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BURST = 100
"""How many requests of one user are served at once."""
EVERY_S = 0.1
"""Seconds between further requests."""
WAIT_MAX_S = 5.0
_BROWSER_HEADERS = ("Origin", "Referer")


def throttled(own_uid: int) -> Any:
    """A middleware: who asks without a pause waits, so that others are served. Not for root and meshd's own user."""
    buckets = TokenBuckets(BURST, EVERY_S)

    @web.middleware
    async def throttle(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        uid = uid_of(request.transport) if request.transport is not None else -1
        if uid not in {0, own_uid}:
            if buckets.wait_s(uid, time.monotonic()) > WAIT_MAX_S:
                raise TooMany("this user asks too often", f"wait {WAIT_MAX_S:g} s")
            if wait_s := buckets.take(uid, time.monotonic()):
                await asyncio.sleep(wait_s)
        return cast("web.StreamResponse", await handler(request))

    return throttle


@web.middleware
async def error_documents(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every failure with a document."""
    try:
        _refuse_browsers(request)
        return await handler(request)
    except web.HTTPException as error:
        return _of_http(error)
    except ValidationError as error:
        return _answer(BadRequest("; ".join(_line(e) for e in error.errors()), "see `meshctl COMMAND --help`"))
    except TimeoutError:
        return _answer(TooSlow("meshd did not answer in time", "run `meshctl doctor`"))
    except errors.MeshdError as error:
        return _answer(error)
    except Exception:  # the API boundary: a fault in one request must not reach another
        log.exception("api_fault", method=request.method, path=request.path)
        view = ErrorView(
            error=f"meshd failed to serve {request.method} {request.path}",
            cure="see `journalctl -u meshd`; this is a fault of meshd",
            kind="internal",
        )
        return web.json_response(text=view.model_dump_json(), status=500)


def _refuse_browsers(request: web.Request) -> None:
    """If a proxy is put in front of the socket, web pages in a browser must not reach meshd through it."""
    for name in _BROWSER_HEADERS:
        if name in request.headers:
            raise Denied(f"requests with a header {name} are refused", "use meshctl, or a client other than a browser")


def _answer(error: errors.MeshdError) -> web.Response:
    status, view = answer_to(error)
    return web.json_response(text=view.model_dump_json(), status=status)


def _of_http(error: web.HTTPException) -> web.Response:
    if isinstance(error, web.HTTPNotFound):
        return _answer(Unknown("this meshd has no such page", "compare `meshctl version` with the daemon's"))
    kind = {413: "too_large", 415: "not_json"}.get(error.status, "http")
    view = ErrorView(error=error.text or error.reason or "refused", kind=kind)
    return web.json_response(text=view.model_dump_json(), status=error.status)


def _line(error: object) -> str:
    assert isinstance(error, dict)
    where = ".".join(str(part) for part in error["loc"]) or "request"
    text = "unknown field" if error["type"] == "extra_forbidden" else error["msg"]
    return f"{where}: {text}"
