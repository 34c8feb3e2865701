"""Connections cost descriptors before anybody has shown a token: they are few for each caller, and short."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from meshd.api.auth import uid_of
from meshd.api.connections import ConnectionLimiter, ConnectionLimits
from tests.security.attacker import Head, address_of, head_at
from tests.waiting import until as seen

HALF = b"POST /v1/poll HTTP/1.1\r\nHost: x\r\n"
EACH = 6


async def until(look: Callable[[], bool]) -> None:
    """Wait until it is so."""

    async def now() -> bool:
        return look()

    await seen(now, bool, "it to be so")


class Conn:
    """A raw connection from a machine's address."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ended(self, within_s: float = 20.0) -> bool:
        """Whether the server ends it within that time."""
        with suppress(ConnectionError):
            try:
                async with asyncio.timeout(within_s):
                    while await self.reader.read(4096):
                        pass
            except TimeoutError:
                return False
        return True

    @property
    def alive(self) -> bool:
        return not self.reader.at_eof() and self.reader.exception() is None


class Crowd:
    """Raw connections to one head, closed at the end."""

    def __init__(self, head: Head) -> None:
        self.port = int(head.base.rsplit(":", 1)[1])
        self.conns: list[Conn] = []

    async def come(self, index: int, sends: bytes = HALF) -> Conn:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address_of(index), 0))
        writer.write(sends)
        conn = Conn(reader, writer)
        self.conns.append(conn)
        return conn

    def leave(self) -> None:
        for conn in self.conns:
            conn.writer.close()


@pytest.fixture
def limits() -> ConnectionLimits:
    return ConnectionLimits(total=40, each=EACH, burst=1000, request_s=60.0)


@pytest.fixture
async def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: ConnectionLimits) -> AsyncIterator[Head]:
    monkeypatch.setattr("meshd.api.node_api.node_limits", lambda _hold_s: limits)
    monkeypatch.setattr("meshd.api.connections.SWEEP_S", 0.05)
    async with head_at(tmp_path / "head") as one:
        yield one


@pytest.fixture
async def crowd(head: Head) -> AsyncIterator[Crowd]:
    made = Crowd(head)
    yield made
    made.leave()


async def test_one_address_holds_few_and_the_agent_on_it_keeps_its_own(head: Head, crowd: Crowd) -> None:
    one, agent = await head.ready()
    held = asyncio.create_task(agent.poll(hold_s=60))
    await until(lambda: head.queues.of(one.name)._turn > 1)
    for _ in range(EACH * 10):
        await crowd.come(1)
    await until(lambda: head.api._connections.of(address_of(1)) <= EACH)
    await until(lambda: sum(conn.alive for conn in crowd.conns) < EACH)
    assert not held.done(), "the poll of the agent is held as before"
    assert (await head.at(1, agent.token).poll()).status == 200, "and a new connection of it is served"
    head.queues.of(one.name).put("leave")
    answer = await held
    assert answer.status == 200


async def test_all_together_hold_no_more_than_the_total_and_agents_stay(
    head: Head, crowd: Crowd, limits: ConnectionLimits
) -> None:
    agents = [await head.ready(index) for index in range(1, 6)]
    held = [asyncio.create_task(agent.poll(hold_s=60)) for _, agent in agents]
    await until(lambda: all(head.queues.of(one.name)._turn > 1 for one, _ in agents))
    for index in range(10, 40):
        for _ in range(EACH):
            await crowd.come(index)
    assert head.api._connections.open <= limits.total
    assert not any(task.done() for task in held)
    for one, _ in agents:
        head.queues.of(one.name).put("leave")
    assert [answer.status for answer in await asyncio.gather(*held)] == [200] * 5


@pytest.mark.parametrize("limits", [ConnectionLimits(total=40, each=EACH, burst=1000, request_s=0.1)])
@pytest.mark.parametrize("sends", [b"", b"GET", HALF, HALF + b"Content-Length: 1000\r\n\r\n{"])
async def test_a_request_that_does_not_come_whole_is_not_waited_for(crowd: Crowd, sends: bytes) -> None:
    conn = await crowd.come(1, sends)
    assert await conn.ended()


@pytest.mark.parametrize("limits", [ConnectionLimits(total=40, each=EACH, burst=1000, request_s=0.5)])
async def test_nor_is_the_next_one(crowd: Crowd) -> None:
    conn = await crowd.come(1, b"GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200 OK" in await conn.reader.readline()
    conn.writer.write(b"GET /v1/ti")
    assert await conn.ended()


@pytest.mark.parametrize("limits", [ConnectionLimits(total=40, each=EACH, burst=1000, request_s=1.0)])
async def test_a_trickle_is_not_a_request(crowd: Crowd) -> None:
    """A byte now and then does not keep a connection."""
    conn = await crowd.come(1)

    async def trickle() -> None:
        with suppress(ConnectionError):
            while True:
                conn.writer.write(b"X-A: b\r\n")
                await conn.writer.drain()
                await asyncio.sleep(0.05)

    task = asyncio.create_task(trickle())
    assert await conn.ended()
    task.cancel()


async def test_headers_without_end_are_cut(crowd: Crowd) -> None:
    conn = await crowd.come(1)
    with suppress(ConnectionError):
        for number in range(200_000):
            conn.writer.write(b"X-%d: %s\r\n" % (number, b"y" * 100))
            await conn.writer.drain()
    assert await conn.ended()


async def test_a_body_that_is_too_large_is_not_read(head: Head) -> None:
    _, agent = await head.ready()
    for size in (70_000, 900_000):
        answer = await agent.poll(problem="", padding="x" * size)
        assert answer.status == 413


async def test_logs_may_be_larger_when_they_were_asked_for(head: Head) -> None:
    one, agent = await head.ready()
    logs = {"logs": {f"log{number}": "x" * 32_000 for number in range(6)}}
    assert (await agent.poll(results=[{"id": "a", "ok": True, "data": logs}])).status == 413
    command = head.queues.of(one.name).put("collect_logs")
    waiting = asyncio.create_task(head.queues.of(one.name).result(command, 20))
    await until(lambda: bool(head.queues.of(one.name)._waiters))
    assert (await agent.poll(results=[{"id": command, "ok": True, "data": logs}])).status == 200
    result = await waiting
    assert result is not None and result.ok and set(result.data["logs"]) == set(logs["logs"])
    assert (await agent.poll(results=[{"id": command, "ok": True, "data": logs}])).status == 413


async def test_a_machine_that_polls_without_a_pause_waits_for_its_turn(head: Head) -> None:
    """The head's clock is in hand: waiting is what moves it."""
    _, agent = await head.ready()
    other, quiet = await head.ready(2)
    before_s = head.clock.t_s
    answers = [(await agent.poll()).status for _ in range(100)]
    assert set(answers) == {200}
    assert head.clock.t_s - before_s >= 30, "100 polls take their time"
    slept = len(head.clock.slept)
    assert (await quiet.poll()).status == 200
    assert len(head.clock.slept) == slept, "others do not wait"
    assert head.get(other.name).heartbeat_at is not None


async def test_each_user_of_the_unix_socket_has_so_many(tmp_path: Path) -> None:
    """This test's user stands for one that is not root."""
    limits = ConnectionLimits(total=20, each=5, burst=1000)
    limiter = ConnectionLimiter("api", limits, uid_of)

    async def hello(_request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application(middlewares=[limiter.middleware()])
    app.router.add_get("/", hello)
    runner = limiter.runner(app, access_log=None)
    await runner.setup()
    path = tmp_path / "s"
    await web.UnixSite(runner, path).start()
    conns = []
    for _ in range(30):
        reader, writer = await asyncio.open_unix_connection(path)
        conns.append(Conn(reader, writer))
    await until(lambda: sum(conn.alive for conn in conns) == 5)
    assert limiter.of(os.getuid()) == 5
    conns[-1].writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200 OK" in await conns[-1].reader.readline()
    for conn in conns:
        conn.writer.close()
    await runner.cleanup()


CHILD = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from meshd.api.node_api import NodeApi
from meshd.runtime.clock import SystemClock
from meshd.runtime.run import run
class Handlers:
    async def machine_for_join(self, token_hash): return None
    async def machine_for_node(self, token_hash): return None
async def main():
    api = NodeApi(Handlers(), poll_hold_s=25.0, clock=SystemClock())
    print("port", await api.start("127.0.0.1", 0), flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        try:
            print("ok" if (await run(["true"], timeout_s=10)).returncode == 0 else "no", flush=True)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
asyncio.run(main())
"""


async def stranger(port: int, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One that begins a request and leaves it at that."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(HALF)
    return reader, writer


async def test_programs_run_and_calls_are_served_while_strangers_hold_all_they_can() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    held: list[Any] = []
    try:
        line = b""
        while not line.startswith(b"port "):
            line = await child.stdout.readline()
        port = int(line.split()[1])
        for first in range(0, 140, 28):
            numbers = range(first, first + 28)
            held += await asyncio.gather(*(stranger(port, f"127.0.9.{number % 50 + 1}") for number in numbers))
            child.stdin.write(b"\n")
            while (line := await child.stdout.readline()) and b"connections_refused" in line:
                pass
            assert line == b"ok\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.9.99", 0))
        held.append((reader, writer))
        writer.write(b"GET /v1/time HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(20):
            assert b"200 OK" in await reader.readline()
    finally:
        for _, one in held:
            one.close()
        child.kill()
        await child.wait()
