"""HTTP/1.1 on a unix socket: as much of it as meshctl speaks with meshd.

Without aiohttp, whose import takes longer than most commands.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

HEAD_MAX_B: Final = 64 * 1024
ANSWER_MAX_B: Final = 1024 * 1024 * 1024
CONNECT_S: Final = 5.0


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
        socket: of the server.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._idle: list[_Connection] = []

    async def request(self, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes]:
        """The status and the body of the answer.

        Args:
            method: GET or POST.
            target: path and query.
            body: JSON.

        Raises:
            Unconnected: nobody listens, or this user may not connect.
            Broken: no whole answer came.
        """
        lines = [f"{method} {target} HTTP/1.1", "Host: meshd", "Accept: application/json"]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        sent = "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")
        connection = self._again() or await self._connect()
        try:
            status, answer, again = await connection.exchange(sent)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            connection.close()
            raise Broken(str(error)) from error
        except BaseException:  # cancelled: what is still to come belongs to nobody
            connection.close()
            raise
        if again:
            self._idle.append(connection)
        else:
            connection.close()
        return status, answer

    def close(self) -> None:
        """End all connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _again(self) -> _Connection | None:
        """A connection that the server has not ended."""
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_S):
                return _Connection(*await asyncio.open_unix_connection(self._socket, limit=HEAD_MAX_B))
        except TimeoutError:
            raise
        except OSError as error:
            raise Unconnected(error) from error


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def open(self) -> bool:
        return not (self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        self._writer.close()

    async def exchange(self, sent: bytes) -> tuple[int, bytes, bool]:
        """Status, body, and whether the connection can be used again."""
        with suppress(ConnectionError):  # who refuses a request may say so before all of it was sent
            self._writer.write(sent)
            await self._writer.drain()
        first, *rest = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, number, *_ = first.split(" ")
        if version not in {"HTTP/1.1", "HTTP/1.0"}:
            raise ValueError("no HTTP")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        if "chunked" in headers.get("transfer-encoding", ""):
            body = await self._chunks()
        else:
            body = await self._part(int(headers.get("content-length", "")))
        return int(number), body, version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"

    async def _chunks(self) -> bytes:
        parts, left_b = [], ANSWER_MAX_B
        while size_b := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            parts.append(await self._part(size_b, left_b))
            left_b -= size_b
            await self._reader.readexactly(2)
        while await self._reader.readuntil(b"\r\n") != b"\r\n":  # a trailer
            pass
        return b"".join(parts)

    async def _part(self, size_b: int, most_b: int = ANSWER_MAX_B) -> bytes:
        if not 0 <= size_b <= most_b:
            raise ValueError(f"an answer of {size_b} bytes")
        return await self._reader.readexactly(size_b)
