"""What the node API calls in the daemon for owned machines."""

from __future__ import annotations

from typing import Protocol

from meshd.api.host_schema import EnrolAnswer, EnrolIn, EvictedIn, HostPollAnswer, HostPollIn
from meshd.model.observed import TailnetPeer


class HostHandlers(Protocol):
    """The daemon's side. Every call may be repeated: an answer may be lost on its way to the host.

    Any call may raise TailnetError or StoreError: the answer has the host try again.
    """

    def invited(self, token_hash: str) -> str | None:
        """The host whose invitation's token has this hash; None when there is none."""
        ...

    def host_of(self, token_hash: str) -> str | None:
        """The host whose own token has this hash; None when there is none."""
        ...

    def check_invitation(self, name: str, peer: TailnetPeer) -> None:
        """Check that this device may use the invitation now.

        Raises:
            JoinRefused: it expired, or was used, or another device used it.
        """
        ...

    def check_host(self, name: str, peer: TailnetPeer) -> None:
        """Check that this device may speak for the host, and close its invitation for good.

        Raises:
            JoinRefused: it is another device than the one that enrolled.
        """
        ...

    async def script(self, name: str) -> str:
        """The script that makes a machine a host."""
        ...

    async def enrol(self, name: str, peer: TailnetPeer, body: EnrolIn) -> EnrolAnswer:
        """Make the calling machine the host.

        Raises:
            JoinRefused: it cannot be a node here; the invitation stays open.
        """
        ...

    async def poll(self, name: str, peer: TailnetPeer, report: HostPollIn, hold_s: float) -> HostPollAnswer:
        """Take the host's word, and answer what should be: at once, or within `hold_s` seconds when nothing changes."""
        ...

    async def evicted(self, name: str, body: EvictedIn) -> None:
        """Forget a host that has taken meshd off itself.

        Raises:
            JoinRefused: nobody has removed it.
        """
        ...
