"""Hollow node agents on the head's real node API, for benchmarks of what the head does with all of them at once.

The head's parts run in the caller's process. The agents run in another one, so that only the head's CPU is counted;
each holds a long poll over loopback from an address of its own, and says of itself what its `Node` says.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from meshd.api.node_api import NodeApi
from meshd.config import NodeApiSettings
from meshd.daemon.agents import AgentQueues
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.model.observed import TailnetPeer
from meshd.runtime.clock import SystemClock
from tests.bench import fleet
from tests.node_room import node_parts

Post = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Sends a body to a path of the node API; None when the head refuses."""


class Node(Protocol):
    """One machine."""

    def report(self) -> dict[str, Any]:
        """What its next poll tells."""
        ...

    async def obey(self, verb: str, args: dict[str, Any]) -> dict[str, Any]:
        """Carry out an order; returns its result's data."""
        ...

    async def settle(self, post: Post) -> None:
        """What it has to do with the head before its next poll."""
        ...


def source(index: int) -> str:
    """The loopback address of a node."""
    return f"127.1.{index // 250}.{index % 250 + 1}"


@dataclass
class Head:
    """What the caller's parts and the node API share.

    Attributes:
        munge_key: its controller, or what stands for it.
        munge: the head's, or what stands for it.
        agent_spoke: called at each poll.
    """

    machine_store: MachineStore
    queues: AgentQueues
    directory: Path
    munge_key: Any
    munge: Any
    agent_spoke: Callable[[str], None] = lambda _: None

    async def whois(self, address: str) -> TailnetPeer:
        """Who calls, at once."""
        _, _, high, low = map(int, address.split("."))
        index = high * 250 + low - 1
        return TailnetPeer(f"n{index}", fleet.name(index), fleet.address(index), online=True)


@asynccontextmanager
async def serving(head: Head, count: int, make: Callable[[int], Node]) -> AsyncIterator[None]:
    """The node API with `count` agents on it, all of which have polled.

    Args:
        head: its parts.
        count: of agents.
        make: makes one by its index, in the other process: something that can be pickled.
    """
    tokens, api = MachineTokens.at(head.directory / "t"), NodeApiSettings()
    service = node_parts(
        head.machine_store,
        tokens=tokens,
        agents=head.queues,
        whois=head,
        munge=head.munge,
        munge_key=head.munge_key,
        agent_spoke=head.agent_spoke,
    ).service
    server = NodeApi(service, poll_hold_s=api.poll_hold_s, clock=SystemClock())
    port = await server.start("127.0.0.1", 0)
    words = [tokens.node_token(fleet.name(i)).get_secret_value() for i in range(1, count + 1)]
    process = multiprocessing.get_context("spawn").Process(target=_agents, args=(port, words, make))
    process.start()
    try:
        async with asyncio.timeout(120):
            while len(head.queues._queues) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        await asyncio.sleep(1.0)
        yield
    finally:
        process.kill()
        process.join()
        await server.stop()


class Meter:
    """Seconds of the clock and of this process's CPU since it was made."""

    def __init__(self) -> None:
        self._began_s, self._cpu_s = time.monotonic(), time.process_time()

    def read(self) -> dict[str, float]:
        """Both, by name."""
        return {"seconds": time.monotonic() - self._began_s, "cpu_s": time.process_time() - self._cpu_s}


def _agents(port: int, tokens: list[str], make: Callable[[int], Node]) -> None:
    async def body() -> None:
        await asyncio.gather(*(_agent(i, port, token, make(i)) for i, token in enumerate(tokens, start=1)))

    asyncio.run(body())


async def _agent(index: int, port: int, token: str, node: Node) -> None:
    connector = aiohttp.TCPConnector(local_addr=(source(index), 0))
    async with aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {token}"}) as session:

        async def post(path: str, body: dict[str, Any]) -> Any:
            async with session.post(f"http://127.0.0.1:{port}{path}", json=body) as answer:
                return await answer.json() if answer.ok else None

        results: list[dict[str, Any]] = []
        while True:
            await node.settle(post)
            answer = await post("/v1/poll", {"phase": "serving", **node.report(), "results": results})
            if answer is None:
                raise RuntimeError(f"the head does not take agent {index}'s poll")
            results = [
                {"id": one["id"], "ok": True, "data": await node.obey(one["verb"], one["args"])}
                for one in answer["commands"]
            ]
