"""HTTP on a unix socket: answers of all shapes, servers that break off, and connections that are used again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from meshd.cli.wire import Broken, Unconnected, Wire
from tests.waiting import until

Say = Callable[[bytes], bytes]


class Server:
    """Answers each request by a function of its head.

    Attributes:
        accepted: connections so far.
        heads: what was asked.
        ends: it ends a connection after each answer.
    """

    def __init__(self, say: Say) -> None:
        self.say, self.accepted, self.heads, self.ends = say, 0, list[bytes](), False
        self.gone = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                writer.write(self.say(head))
                await writer.drain()
                if self.ends:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.gone += 1
            writer.close()


@asynccontextmanager
async def served(folder: Path, say: Say) -> AsyncIterator[tuple[Server, Wire]]:
    server, wire = Server(say), Wire(folder / "s")
    listening = await asyncio.start_unix_server(server.serve, folder / "s")
    try:
        yield server, wire
    finally:
        wire.close()
        listening.close()


def plain(head: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_one_connection_serves_one_request_after_the_other(tmp_path: Path) -> None:
    async with served(tmp_path, plain) as (server, wire):
        for _ in range(3):
            assert await wire.request("GET", "/v1/x?a=b%20c") == (200, b"ok")
        assert server.accepted == 1 and server.heads[0].startswith(b"GET /v1/x?a=b%20c HTTP/1.1\r\n")
        await asyncio.gather(*(wire.request("GET", "/") for _ in range(4)))
        assert server.accepted <= 4


async def test_a_connection_that_the_server_ended_is_not_used_again(tmp_path: Path) -> None:
    async with served(tmp_path, plain) as (server, wire):
        server.ends = True
        for _ in range(3):
            assert (await wire.request("POST", "/", b"{}"))[0] == 200

            async def gone() -> int:
                return server.gone

            await until(gone, lambda seen: seen == server.accepted, "the server has ended it")
            await asyncio.sleep(0.01)  # its end is on the way
        assert server.accepted == 3


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length:0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", b"abcde"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Late: 1\r\n\r\n", b"a"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000, b"x" * 200_000),
    ],
)
async def test_answers_of_all_shapes(tmp_path: Path, answer: bytes, body: bytes) -> None:
    async with served(tmp_path, lambda _: answer) as (_, wire):
        for _ in range(2):
            assert (await wire.request("GET", "/"))[1] == body


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000, b"HTTP/1.1\r\n\r\n", b"\x00" * 100 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n",
    ],
)  # fmt: skip
async def test_what_is_no_whole_answer_is_broken(tmp_path: Path, answer: bytes) -> None:
    async with served(tmp_path, lambda _: answer) as (server, wire):
        server.ends = True
        with pytest.raises(Broken):
            async with asyncio.timeout(20):
                await wire.request("GET", "/")


async def test_after_a_wait_that_was_given_up_no_answer_goes_to_another_question(tmp_path: Path) -> None:
    async with served(tmp_path, plain) as (server, wire):
        server.say = lambda head: b"" if b"slow" in head else plain(head)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await wire.request("GET", "/slow")
        assert await wire.request("GET", "/") == (200, b"ok")
        assert server.accepted == 2


async def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(Unconnected) as raised:
        await Wire(tmp_path / "none").request("GET", "/")
    assert isinstance(raised.value.fault, FileNotFoundError)
