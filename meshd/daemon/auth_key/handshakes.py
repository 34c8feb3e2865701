"""Begins the WireGuard sessions with a node that has logged in again, from the side of the peers that learn its key.

Facts (wireguard-go device/send.go, tailscale 1.102, measured): a side that does not know the sender's new node key, or
does not use its own new one yet, drops a handshake initiation silently. The sender then sends no other for 5 s
(RekeyTimeout), whatever it has to send. The other side does not wait: the first initiation of the side that learns the
key last is never lost. So after a login both sides prime the session: each sends a packet when it knows the new key.
The node does so by itself. This module makes its peers do so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

import structlog

from meshd.daemon.agents import Asks
from meshd.errors import TailnetError
from meshd.runtime.clock import Clock
from meshd.tailnet.rotation_fleet import AuthKeyFleet

PRIME_AFTER_S: Final = 0.25
"""The node may not use its new node key yet: a packet that comes too early is lost."""
PRIME_TRIES: Final = 6
PEER_PRIMES_S: Final = 15.0
"""An agent waits up to 5 s for its own tailscaled to know the new key."""

log = structlog.get_logger(__name__)


class PrimesSessions(Protocol):
    """The head's tailscaled; see LocalApi."""

    async def prime_session(self, ip: str) -> None:
        """Begin a WireGuard session with a peer. Raises TailnetError when the peer does not answer."""
        ...


class HandshakePrimer:
    """Primes the sessions with nodes that log in again. It keeps its state in memory: a crash costs one pause of 5 s.

    Args:
        tailnet: the head's tailscaled.
        agents: asks nodes.
        clock: time.
    """

    def __init__(self, tailnet: PrimesSessions, agents: Asks, clock: Clock) -> None:
        self._tailnet = tailnet
        self._agents = agents
        self._clock = clock
        self._keys_before: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def expected(self) -> bool:
        """The head has not seen some node's new key yet."""
        return bool(self._keys_before)

    def expect(self, machine: str, node_key: str) -> None:
        """A node is about to log in again. `node_key` is its present one, "" when not known."""
        if node_key:
            self._keys_before[machine] = node_key

    def forget(self) -> None:
        """Forget the logins: the rotation has ended."""
        self._keys_before.clear()

    def look(self, fleet: AuthKeyFleet) -> None:
        """Prime the sessions with nodes whose new key the head's tailscaled knows now.

        The nodes that share a job with such a node do the same. Other nodes have no session to lose: they begin one
        with their first packet.
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
        """Cancel what has not ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="prime session")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _from_head(self, machine: str, address: str) -> None:
        await self._clock.sleep(PRIME_AFTER_S)
        why = ""
        for _ in range(PRIME_TRIES):
            try:
                await self._tailnet.prime_session(address)
            except TailnetError as error:
                why = str(error)
            else:
                log.info("session_primed", machine=machine)
                return
        log.info("session_not_primed", machine=machine, reason=why)

    async def _from_node(self, peer: str, machine: str, address: str, node_key: str) -> None:
        args = {"address": address, "node_key": node_key}
        result = await self._agents.ask(peer, "greet", args, PEER_PRIMES_S, first=True)
        if result is None or not result.ok or not result.data.get("answered"):
            log.info("session_not_primed", machine=machine, by=peer, reason=result.detail if result else "no answer")
