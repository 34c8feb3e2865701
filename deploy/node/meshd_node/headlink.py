"""HTTP calls to the head: plain HTTP inside the tailnet, one persistent connection, JSON both ways."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from .errors import HeadRefused, HeadUnreachable, Interrupted
from .sockets import other_end_uid

ANSWER_MAX = 8 * 1024 * 1024
CONNECT_TIMEOUT_S = 10.0
_AGAIN = (429, 500, 502, 503, 504)


class HeadLink:
    """Calls to the head. All calls are idempotent: that is part of the protocol.

    Args:
        heads: its addresses, tried in this order.
        port: of its node API.
        proxy: an HTTP proxy (IPv4 address on loopback, port) that reaches the tailnet; None where the kernel does.
        proxy_uid: whose process the proxy is; None: this process's user. Any user may take the proxy's port while
            tailscaled starts again; that user's process gets no token.
    """

    def __init__(
        self, heads: Sequence[str], port: int, proxy: tuple[str, int] | None = None, proxy_uid: int | None = None
    ) -> None:
        self._proxy = proxy
        self._proxy_uid = os.geteuid() if proxy_uid is None else proxy_uid
        self._heads = list(heads)
        self._port = port
        self._connection: http.client.HTTPConnection | None = None
        self._outdated: Callable[[], bool] | None = None

    def call(
        self,
        method: str,
        path: str,
        token: str = "",
        body: Any = None,
        timeout_s: float = 15.0,
        outdated: Callable[[], bool] | None = None,
    ) -> Any:
        """Make one call, and return the decoded JSON answer.

        Args:
            method: GET or POST.
            path: e.g. /v1/join.
            token: bearer token, "" for none.
            body: sent as JSON; None sends nothing.
            timeout_s: for the answer; longer than the head holds a poll.
            outdated: whether the body says something that is no longer so; `interrupt` ends such a call.

        Raises:
            Interrupted: the body was outdated before an answer came.
            HeadUnreachable: no usable answer (refused, timed out, cut, 5xx, not JSON).
            HeadRefused: a 4xx with the head's reason.
        """
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        self._outdated = outdated
        try:
            return self._judge(*self._twice(method, path, data, headers, timeout_s))
        finally:
            self._outdated = None

    def interrupt(self) -> None:
        """End a call that waits in another thread, if its body is outdated."""
        outdated = self._outdated  # the other thread may end the call at this moment
        if outdated is not None and outdated():
            self.cut()

    def _twice(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> tuple[int, bytes]:
        """The head's status and answer; on a connection that was used before, the call is made again if it breaks."""
        fresh = self._connection is None
        try:
            return self._exchange(method, path, data, headers, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            self._check_news()
            if fresh:
                raise HeadUnreachable(f"the head does not answer: {error or type(error).__name__}") from None
            # the head may have closed the persistent connection: try once more on a new one
            try:
                return self._exchange(method, path, data, headers, timeout_s)
            except (OSError, http.client.HTTPException) as second:
                self.close()
                self._check_news()
                raise HeadUnreachable(f"the head does not answer: {second or type(second).__name__}") from None

    def _check_news(self) -> None:
        """Raises Interrupted when the body of the call is outdated."""
        if self._outdated is not None and self._outdated():
            raise Interrupted("there is something new to tell the head")

    def clock_skew_s(self, samples: int = 1) -> float:
        """This clock minus the head's, in seconds, corrected by half the round trip; of the fastest of `samples` trips.

        Raises:
            HeadUnreachable: no usable answer.
        """
        if self._connection is None:
            self._open()  # so that the round trip does not include the connect
        return min(self._skew() for _ in range(samples))[1]

    def _skew(self) -> tuple[float, float]:
        """(round trip, skew) in seconds."""
        before, started = time.time(), time.monotonic()
        answer = self.call("GET", "/v1/time")
        round_trip_s = time.monotonic() - started
        unix = answer.get("unix") if isinstance(answer, dict) else None
        if not isinstance(unix, (int, float)):
            raise HeadUnreachable("the head sent no time")
        return round_trip_s, before + round_trip_s / 2 - float(unix)

    def close(self) -> None:
        """Drop the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def cut(self) -> None:
        """Make a call that waits in another thread use a new connection at once: the present one is dead."""
        connection = self._connection
        found = connection.sock if connection is not None else None
        if found is not None:
            with suppress(OSError):  # it is closed already
                found.shutdown(socket.SHUT_RDWR)

    def _open(self) -> http.client.HTTPConnection:
        failure: OSError = OSError("no address of the head is known")
        for head in self._heads:
            connection = self._connection_to(head)
            try:
                connection.connect()
                self._check_proxy(connection)
            except OSError as error:
                connection.close()
                failure = error
                continue
            self._connection = connection
            return connection
        raise HeadUnreachable(f"the head does not answer: {failure}")

    def _connection_to(self, head: str) -> http.client.HTTPConnection:
        if self._proxy is None:
            return http.client.HTTPConnection(head, self._port, timeout=CONNECT_TIMEOUT_S)
        connection = http.client.HTTPConnection(*self._proxy, timeout=CONNECT_TIMEOUT_S)
        connection.set_tunnel(f"[{head}]" if ":" in head else head, self._port)
        return connection

    def _check_proxy(self, connection: http.client.HTTPConnection) -> None:
        """Raises OSError where the proxy is another user's. It has answered, so a process has the connection."""
        if self._proxy is None or connection.sock is None:
            return
        uid = other_end_uid(connection.sock)
        if uid != self._proxy_uid:
            whose = "nobody's any more" if uid is None else f"the user {uid}'s"
            raise OSError(f"the proxy at {self._proxy[0]}:{self._proxy[1]} is {whose}, not tailscaled's")

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> tuple[int, bytes]:
        connection = self._connection or self._open()
        self._check_news()  # now that `interrupt` finds the connection
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request(method, path, body=data, headers=headers)
        response = connection.getresponse()
        answer = response.read(ANSWER_MAX)
        if response.will_close:
            self.close()
        return response.status, answer

    def _judge(self, status: int, answer: bytes) -> Any:
        try:
            value = json.loads(answer) if answer else {}
        except ValueError:
            self.close()
            raise HeadUnreachable(f"the head answered {status} with something that is not JSON") from None
        if status < 400:
            return value
        fault = value if isinstance(value, dict) else {}
        reason = str(fault.get("reason") or f"the head answered {status}")
        if status in _AGAIN:
            raise HeadUnreachable(reason)
        code = str(fault.get("code") or "")
        raise HeadRefused(status, reason, str(fault.get("cure") or ""), bool(fault.get("fatal", False)), code)

    def fetch(self, path: str, token: str, timeout_s: float = 60.0) -> bytes:
        """A file from the head.

        Raises:
            HeadUnreachable, HeadRefused: as `call`.
        """
        headers = {"Authorization": f"Bearer {token}"}
        status, answer = self._twice("GET", path, None, headers, timeout_s)
        if status != 200:
            self._judge(status, answer)
            raise HeadUnreachable(f"the head answered {status}")
        return answer
