"""Begins the WireGuard sessions with a node that has logged in anew, from the side of those who learn its new key.

Facts (wireguard-go device/send.go, tailscale 1.102, measured): a handshake initiation that meets a side which does not
know the sender's new node key, or does not use its own yet, is dropped without a word, and its sender sends no other
for 5 s (RekeyTimeout), whatever it has to send. The other side is not held back by that: the first initiation of the
one that is last to know the new key is never lost. The node greets for itself after its login; its peers do it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import structlog

from meshd.daemon.nodes.agents import Asks
from meshd.errors import TailnetError
from meshd.runtime.clock import Clock
from meshd.tailnet.rotation_fleet import AuthKeyFleet

GREET_AFTER_S: Final = 0.25
"""The node may still be about to put its new node key to use: a packet that comes too early is lost."""
GREETINGS: Final = 6
PEER_GREETS_S: Final = 15.0
"""An agent waits up to 5 s for its own tailscaled to know the new key."""

log = structlog.get_logger(__name__)


class HandshakePrimer:
    """Who logs in anew, and who greets it. In memory: what a crash forgets costs one pause of 5 s.

    Args:
        greet: see LocalApi.greet.
        agents: asks nodes.
        clock: time.
    """

    def __init__(self, greet: Callable[[str], Awaitable[object]], agents: Asks, clock: Clock) -> None:
        self._greet = greet
        self._agents = agents
        self._clock = clock
        self._keys_before: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def expected(self) -> bool:
        """Some node's new key has not been seen yet."""
        return bool(self._keys_before)

    def expect(self, machine: str, node_key: str) -> None:
        """A node is about to log in anew; `node_key` is the one that it has until then, "" when not known."""
        if node_key:
            self._keys_before[machine] = node_key

    def forget(self) -> None:
        """No login is under way any more."""
        self._keys_before.clear()

    def look(self, fleet: AuthKeyFleet) -> None:
        """Greet those whose new key the head's tailscaled knows now, and have the nodes of their jobs do the same.

        Other nodes do not talk with it, or make a session when they begin to.
        """
        for machine, before in list(self._keys_before.items()):
            seen = fleet.nodes.get(machine)
            if seen is not None and seen.node_key in ("", before):
                continue
            del self._keys_before[machine]
            if seen is None or not seen.address:
                continue
            self._begin(self._from_head(machine, seen.address))
            for other, peer in fleet.nodes.items():
                if other != machine and peer.reachable and not set(peer.jobs).isdisjoint(seen.jobs):
                    self._begin(self._from_node(other, machine, seen.address, seen.node_key))

    async def aclose(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="greeting")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _from_head(self, machine: str, address: str) -> None:
        await self._clock.sleep(GREET_AFTER_S)
        why = ""
        for _ in range(GREETINGS):
            try:
                await self._greet(address)
            except TailnetError as error:
                why = str(error)
            else:
                log.info("node_greeted", machine=machine)
                return
        log.info("node_not_greeted", machine=machine, reason=why)

    async def _from_node(self, peer: str, machine: str, address: str, node_key: str) -> None:
        args = {"address": address, "node_key": node_key}
        result = await self._agents.ask(peer, "greet", args, PEER_GREETS_S, first=True)
        if result is None or not result.ok or not result.data.get("answered"):
            log.info("node_not_greeted", machine=machine, by=peer, reason=result.detail if result else "no answer")
