"""The head's own tailscaled, as the parts of the daemon use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from meshd.model.observed import Observation, TailnetView
from meshd.tailnet.localapi import LocalApi
from meshd.tailnet.watcher import TailnetWatcher


class TailnetLink(Protocol):
    """What the head sees of the tailnet, and how it reaches a node there."""

    @property
    def current(self) -> Observation[TailnetView]:
        """The newest view, or since when and why there is none."""
        ...

    async def look(self) -> None:
        """Read the whole status now, into `current`."""
        ...

    async def prime_session(self, ip: str) -> None:
        """Begin a WireGuard session with a peer. Raises TailnetError when the peer does not answer."""
        ...


@dataclass(frozen=True, slots=True)
class HeadTailnet:
    """The link by a running tailscaled.

    Attributes:
        watcher: keeps the view.
        local: tailscaled's own API.
    """

    watcher: TailnetWatcher
    local: LocalApi

    @property
    def current(self) -> Observation[TailnetView]:
        """See TailnetWatcher.current."""
        return self.watcher.current

    async def look(self) -> None:
        """See TailnetWatcher.look."""
        await self.watcher.look()

    async def prime_session(self, ip: str) -> None:
        """See LocalApi.prime_session."""
        await self.local.prime_session(ip)
