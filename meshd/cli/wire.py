"""HTTP on a unix socket by Python's own http.client, each request in a thread.

Not by aiohttp: its import takes longer than most commands of meshctl.
"""

from __future__ import annotations

import asyncio
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

ANSWER_MAX_B: Final = 1024 * 1024 * 1024
CONNECT_S: Final = 5.0
AT_ONCE: Final = 16
"""Requests that run at the same time; others wait. The live view has five."""


class Broken(Exception):
    """The other side ended the connection, or said what is no HTTP."""


class Unconnected(Exception):
    """There is no connection.

    Args:
        fault: why.
    """

    def __init__(self, fault: OSError) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Wire:
    """Connections to one socket: each is used again, for one request at a time.

    Args:
        path: of the server's socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[_Connection] = []
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="meshctl-http")

    async def request(self, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes]:
        """The status and the body of the answer. A cancellation ends the connection.

        Args:
            method: GET or POST.
            target: path and query.
            body: JSON.

        Raises:
            Unconnected: nobody listens, or this user may not connect.
            Broken: no whole answer came.
        """
        connection = self._again() or _Connection(self._path)
        job = self._threads.submit(connection.exchange, method, target, body)
        try:
            status, answer = await asyncio.wrap_future(job)
        except BaseException:  # also when cancelled: what is still to come belongs to nobody
            connection.break_off()
            job.add_done_callback(lambda _: connection.close())
            raise
        if connection.sock is not None:
            self._idle.append(connection)
        return status, answer

    def close(self) -> None:
        """End all connections that no request uses."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        self._threads.shutdown(wait=False)

    def _again(self) -> _Connection | None:
        """A connection that the server has not ended."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_ended():
                return connection
            connection.close()
        return None


class _Connection(HTTPConnection):
    """One connection. http.client opens it with the first request, and ends it where the server says so."""

    def __init__(self, path: Path) -> None:
        super().__init__("meshd")
        self._path = path
        self._broken_off = False

    def connect(self) -> None:
        """Connect to the socket. Raises Unconnected, or TimeoutError."""
        self.sock = socket.socket(socket.AF_UNIX)
        try:
            self.sock.settimeout(CONNECT_S)
            self.sock.connect(str(self._path))
            self.sock.settimeout(None)
        except TimeoutError:
            raise
        except OSError as error:
            raise Unconnected(error) from error
        if self._broken_off:
            raise TimeoutError

    def exchange(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        """Status and body. Raises Unconnected, Broken, or TimeoutError."""
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # who refuses may say so before all of it was sent
                self.request(method, target, body, headers)
            with self.getresponse() as response:
                if response.length is None and not response.chunked:
                    raise Broken("an answer without a length")
                answer = response.read(ANSWER_MAX_B + 1)
                if len(answer) > ANSWER_MAX_B or response.length:
                    raise Broken(f"{len(answer)} bytes of an answer")
                return response.status, answer
        except TimeoutError:
            raise
        except (OSError, HTTPException, ValueError) as error:
            raise Broken(str(error)) from error

    def has_ended(self) -> bool:
        """Whether the server has ended it, or has sent what nobody asked for."""
        return self.sock is None or bool(select.select([self.sock], [], [], 0)[0])

    def break_off(self) -> None:
        """Have the request that another thread makes fail."""
        self._broken_off = True
        if self.sock is not None:
            with suppress(OSError):  # it is not connected any more
                self.sock.shutdown(socket.SHUT_RDWR)
