"""The client of the head API. Every call has a deadline and ends with a document or a CliError."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, overload
from urllib.parse import urlencode

from pydantic import ValidationError

from meshd.api.endpoints import A, Endpoint, R
from meshd.api.schema import ErrorView, Request
from meshd.cli.errors import CliError, ExitCode, UnreachableError
from meshd.cli.wire import Broken, Unconnected, Wire

Query: TypeAlias = Sequence[tuple[str, str]]

TIMEOUT_S = 60.0
_CODES = {400: ExitCode.USAGE, 404: ExitCode.USAGE, 403: ExitCode.DENIED, 504: ExitCode.TIMED_OUT}


class HeadClient:
    """Speaks with the daemon. Use as an async context manager."""

    def __init__(self, socket: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self.socket = socket
        self._timeout_s = timeout_s
        self._wire = Wire(socket)

    async def __aenter__(self) -> HeadClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wire.close()

    @overload
    async def call(self, endpoint: Endpoint[None, A]) -> A: ...

    @overload
    async def call(self, endpoint: Endpoint[R, A], request: R) -> A: ...

    async def call(self, endpoint: Endpoint[Any, A], request: Request | None = None) -> A:
        """Ask an endpoint of the table.

        Raises:
            UnreachableError: the daemon does not answer, or not in time.
            CliError: it refuses, or answers what this meshctl does not understand.
        """
        timeout_s = self._timeout_s + endpoint.extra_s + (request.waits_s() if request else 0.0)
        if endpoint.method == "GET":
            return await self._ask(endpoint, _pairs(request) if request else (), None, timeout_s)
        body = request.model_dump_json(exclude_unset=True) if request else "{}"
        return await self._ask(endpoint, (), body, timeout_s)

    async def _ask(self, endpoint: Endpoint[Any, A], query: Query, body: str | None, timeout_s: float) -> A:
        target = endpoint.path + (f"?{urlencode(query)}" if query else "")
        try:
            async with asyncio.timeout(timeout_s):
                status, answer = await self._wire.request(endpoint.method, target, body.encode() if body else None)
        except Unconnected as error:
            raise _cannot_connect(self.socket, error.fault) from error
        except TimeoutError as error:
            raise UnreachableError(
                f"meshd did not answer on {self.socket} within {timeout_s:g} s" + _may_have_happened(body),
                "see `systemctl status meshd` and `journalctl -u meshd`",
            ) from error
        except Broken as error:
            raise UnreachableError(
                f"meshd ended the connection on {self.socket} before it answered" + _may_have_happened(body),
                "it may be restarting: see `systemctl status meshd`, then try again",
            ) from error
        text = answer.decode("utf-8", "replace")
        if status != 200:
            raise _refused(status, text)
        return self._read(text, endpoint.answer)

    def _read(self, text: str, kind: type[A]) -> A:
        try:
            return kind.model_validate_json(text)
        except ValidationError as error:
            raise CliError(
                f"this meshctl does not understand the {kind.__name__} that meshd sent on {self.socket}",
                "install the same version on both sides: compare `meshctl version`",
                kind="unreadable",
            ) from error


def _pairs(request: Request) -> Query:
    """A request as a query string: without defaults, lists as repeated names."""
    given = request.model_dump(mode="json", exclude_defaults=True)
    return [
        (name, _text(one)) for name, value in given.items() for one in (value if isinstance(value, list) else [value])
    ]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _may_have_happened(body: str | None) -> str:
    return "; the request may have been carried out" if body is not None else ""


def _refused(status: int, text: str) -> CliError:
    code = _CODES.get(status, ExitCode.FAILED)
    try:
        view = ErrorView.model_validate_json(text)
    except ValidationError:
        return CliError(f"meshd answered HTTP {status} without a reason", "see `journalctl -u meshd`", code=code)
    if view.kind == "not_ready":
        return UnreachableError(view.error, view.cure)
    return CliError(view.error, view.cure, code=code, kind=view.kind, refusal=view.code)


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
