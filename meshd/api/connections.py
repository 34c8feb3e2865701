"""Limits on the connections to meshd's servers: how many, and how long without a request.

A connection costs a file descriptor before its caller has shown a token. So there is a limit for each caller and one
for the server; a request must arrive whole within a deadline; and a part of the process's descriptors is left for the
programs that meshd runs. A caller is an address, or on the unix socket a user.

A caller that has shown the right token does not lose its connection to others. So whoever shares a machine's address,
its users among them, cannot shut its node agent out.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from meshd.plaintext import plain
from meshd.runtime.tokenbucket import TokenBuckets

log = structlog.get_logger(__name__)

SWEEP_S: Final = 1.0
KEEPALIVE_S: Final = 75.0
UNPARSED_MAX_B: Final = 1024 * 1024
"""A client that sends more than this without a complete request is disconnected."""
TOLD_EVERY_S: Final = 60.0

CallerOf = Callable[[asyncio.BaseTransport], Hashable]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one server.

    Attributes:
        total: connections in all.
        each: connections of one caller.
        burst: new connections of one caller at once.
        every_s: seconds between further ones.
        request_s: a request must arrive within this, its head as well as its body.
        answer_s: a request is served within this; None: no deadline.
    """

    total: int
    each: int
    burst: int = 100
    every_s: float = 0.1
    request_s: float = 10.0
    answer_s: float | None = None


def share(part: float, most: int) -> int:
    """A part of the file descriptors that this process may open, `most` at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(4, min(most, int(soft * part)))


def raise_descriptor_limit(most: int = 65536) -> None:
    """Let this process open as many files as it may, up to `most`: each node agent holds a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(most, hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, hard), hard))


class ConnectionLimiter:
    """Counts and ends the connections of one server.

    Args:
        name: of the server, for the log.
        limits: of it.
        caller_of: tells who is at the other end.
        free: callers without limits of their own; they still count in the total.
    """

    def __init__(
        self, name: str, limits: ConnectionLimits, caller_of: CallerOf, free: frozenset[Hashable] = frozenset()
    ) -> None:
        self._name = name
        self._limits = limits
        self._caller_of = caller_of
        self._free = free
        self._counts: Counter[Hashable] = Counter()
        self._open: dict[Any, _Connection] = {}
        self._untrusted: OrderedDict[_Connection, None] = OrderedDict()
        self._untrusted_of: dict[Hashable, OrderedDict[_Connection, None]] = {}
        self._new = TokenBuckets(limits.burst, limits.every_s)
        self._refused = 0
        self._told_s = float("-inf")
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def open(self) -> int:
        """Connections now."""
        return len(self._open)

    def of(self, caller: Hashable) -> int:
        """Connections of one caller now."""
        return self._counts[caller]

    @property
    def backlog(self) -> int:
        """How many connections the kernel accepts before they are counted."""
        return max(4, min(512, self._limits.total // 8))

    def runner(self, app: web.Application, **options: Any) -> web.AppRunner:
        """Serves the app within these limits. `middleware` must be the app's first one."""
        logger = logging.getLogger(f"{__name__}.{self._name}")
        logger.filters[:] = [_Garbled(self._name)]
        return _Runner(self, app, keepalive_timeout=KEEPALIVE_S, lingering_time=2.0, logger=logger, **options)

    def middleware(self) -> Any:
        """Notes when a connection's request has arrived, and when it is answered."""

        @web.middleware
        async def told(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
            connection = self._open.get(request.protocol)
            if connection is None:
                return cast("web.StreamResponse", await handler(request))
            connection.begins(request)
            try:
                return cast("web.StreamResponse", await handler(request))
            finally:
                connection.ends()

        return told

    def trust(self, request: web.Request) -> None:
        """The caller has shown the right token: never end its connection to make room."""
        connection = self._open.get(request.protocol)
        if connection is not None:
            self._never_give_up(connection)

    def start(self) -> None:
        """Watch over the deadlines."""
        self._sweeper = asyncio.create_task(self._sweep(), name=f"{self._name}-connections")

    async def stop(self) -> None:
        """Watch no longer."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None

    # -- for the candidates --------------------------------------------------------------------------------------------

    def admit(self, connection: _Connection, transport: asyncio.BaseTransport) -> bool:
        """Whether a new connection may stay. An older one may be ended to make room."""
        connection.caller = caller = self._caller_of(transport)
        free = caller in self._free
        if not free:
            if self._new.wait_s(caller, time.monotonic()) > 0 or not self._room_for(caller):
                self._note(caller)
                return False
            self._new.take(caller, time.monotonic())
        if len(self._open) >= self._limits.total and not self._give_up(None):
            self._note(caller)
            return False
        self._counts[caller] += 1
        self._open[connection.inner] = connection
        self._untrusted[connection] = None
        self._untrusted_of.setdefault(caller, OrderedDict())[connection] = None
        return True

    def lost(self, connection: _Connection) -> None:
        """A connection has ended."""
        if self._open.pop(connection.inner, None) is None:
            return
        self._never_give_up(connection)
        self._counts[connection.caller] -= 1
        if not self._counts[connection.caller]:
            del self._counts[connection.caller]

    def _room_for(self, caller: Hashable) -> bool:
        return self._counts[caller] < self._limits.each or self._give_up(caller)

    def _give_up(self, caller: Hashable | None) -> bool:
        """End the oldest connection that showed no token, of one caller or of anybody."""
        candidates = self._untrusted if caller is None else self._untrusted_of.get(caller, OrderedDict())
        connection = next(iter(candidates), None)
        if connection is None:
            return False
        self._note(connection.caller)
        connection.abort()
        return True

    def _never_give_up(self, connection: _Connection) -> None:
        """Take it off the list of connections that may be ended to make room."""
        self._untrusted.pop(connection, None)
        of_caller = self._untrusted_of.get(connection.caller)
        if of_caller is not None:
            of_caller.pop(connection, None)
            if not of_caller:
                del self._untrusted_of[connection.caller]

    def _note(self, caller: Hashable) -> None:
        self._refused += 1
        now_s = time.monotonic()
        if now_s - self._told_s >= TOLD_EVERY_S:
            log.warning(
                "connections_refused", server=self._name, refused=self._refused, last=str(caller), open=len(self._open)
            )
            self._told_s, self._refused = now_s, 0

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = time.monotonic()
            for late in [one for one in self._open.values() if one.late(now_s, self._limits)]:
                late.abort()


class _Garbled(logging.Filter):
    """Counts requests that are no HTTP, where aiohttp would log a trace for each: strangers must not fill the log.

    Args:
        server: its name.
    """

    def __init__(self, server: str) -> None:
        super().__init__()
        self._server, self._count, self._told_s = server, 0, float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Let through all but those."""
        fault = record.exc_info[1] if record.exc_info else None
        if not isinstance(fault, HttpProcessingError):
            return True
        self._count += 1
        now_s = time.monotonic()
        if now_s - self._told_s >= TOLD_EVERY_S:
            log.info("requests_garbled", server=self._server, count=self._count, last=plain(str(fault.message), 200))
            self._told_s, self._count = now_s, 0
        return False


class _Connection(asyncio.Protocol):
    """One connection: what comes goes on to aiohttp's protocol, once it is admitted."""

    def __init__(self, limiter: ConnectionLimiter, inner: Any) -> None:
        self._limiter = limiter
        self.inner = inner
        self.caller: Hashable = None
        self._transport: asyncio.Transport | None = None
        self._request: web.Request | None = None
        self._since_s = time.monotonic()
        self._idle = False
        """Its last request was answered, and nothing has come since."""
        self._came_b = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._limiter.admit(self, transport):
            self._transport.abort()
            self._transport = None
            return
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._idle:
            self._idle, self._since_s = False, time.monotonic()
        self._came_b += len(data)
        if self._came_b > UNPARSED_MAX_B:
            self.abort()
            return
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return cast("bool | None", self.inner.eof_received()) if self._transport is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._limiter.lost(self)
            self.inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._transport is not None:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self.inner.resume_writing()

    def begins(self, request: web.Request) -> None:
        """Its head is here."""
        self._request, self._idle, self._since_s, self._came_b = request, False, time.monotonic(), 0

    def ends(self) -> None:
        """It is answered, or about to be."""
        self._request, self._idle, self._since_s, self._came_b = None, True, time.monotonic(), 0

    def late(self, now_s: float, limits: ConnectionLimits) -> bool:
        """It missed a deadline."""
        waited_s = now_s - self._since_s
        if self._request is None:
            return waited_s > (KEEPALIVE_S + limits.request_s if self._idle else limits.request_s)
        if limits.answer_s is not None and waited_s > limits.answer_s:
            return True
        return not self._request.content.is_eof() and waited_s > 4 * limits.request_s

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()
            self._limiter.lost(self)


class _Runner(web.AppRunner):
    """An AppRunner whose connections pass the limiter."""

    def __init__(self, limiter: ConnectionLimiter, app: web.Application, **options: Any) -> None:
        super().__init__(app, **options)
        self._limiter = limiter

    @property
    def server(self) -> Any:
        """The factory of protocols."""
        inner = super().server
        return None if inner is None else lambda: _Connection(self._limiter, inner())

    async def setup(self) -> None:
        """As AppRunner's."""
        await super().setup()
        self._limiter.start()

    async def cleanup(self) -> None:
        """As AppRunner's."""
        await self._limiter.stop()
        await super().cleanup()


def address_of(transport: asyncio.BaseTransport) -> Hashable:
    """The caller's address."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""
