"""The one place where the API catches everything: each failure becomes an ErrorView, none of them a stack trace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web
from pydantic import ValidationError

from meshd.api.faults import BadRequest, Denied, TooSlow, Unknown, answer_to
from meshd.api.schema import ErrorView
from meshd.errors import MeshdError

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BROWSER_HEADERS = ("Origin", "Referer")


@web.middleware
async def boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
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
    except MeshdError as error:
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
    """A page in somebody's browser must not be able to speak through a proxy that was put before the socket."""
    for name in _BROWSER_HEADERS:
        if name in request.headers:
            raise Denied(f"requests with a header {name} are refused", "use meshctl, or a client that is no browser")


def _answer(error: MeshdError) -> web.Response:
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
