"""What the node API asks of the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from meshd.api.node_commands import Command
from meshd.api.node_schema import JoinAnswer, Needs, PollIn
from meshd.bootstrap.tokens import JoinTicket, NodeCaller
from meshd.errors import JoinRefused
from meshd.model.hardware import NodeFacts
from meshd.model.observed import TailnetPeer


class NodeHandlers(Protocol):
    """The daemon's side. Every call may come again: an answer may be lost on its way to the machine.

    Any call may raise TailnetError, SlurmError, StoreError or MungeError: the agent is told to try again.
    """

    async def whois(self, ip: str) -> TailnetPeer | None:
        """The tailnet device that has this address; None when the tailnet knows none.

        Raises:
            TailnetError: tailscaled cannot be asked: nobody is let in or out for that.
        """
        ...

    async def machine_for_join(self, token_hash: str) -> JoinTicket | None:
        """The ticket with this hash; None when there is none, or its machine is no longer wanted."""
        ...

    async def join_refused(self, machine: str, peer: TailnetPeer, error: JoinRefused) -> None:
        """The machine's join token came from this device and was refused: remember what people must see."""
        ...

    async def check_device(self, machine: str, peer: TailnetPeer) -> None:
        """Whether the device that calls with the machine's join token may be this machine's.

        Raises:
            JoinRefused: it is another machine's.
        """
        ...

    async def proved(self, caller: NodeCaller) -> None:
        """The machine's own device came with its node token: its join token is closed for good."""
        ...

    async def take_device(self, machine: str, peer: TailnetPeer) -> None:
        """The machine's node token comes from another device than the one it joined with: take it, or refuse.

        Raises:
            JoinRefused: it is a copy of the machine, or the old device is still there.
            NotNow: the tailnet cannot be read, or believed, now.
        """
        ...

    async def trouble(self, machine: str, stage: str, text: str) -> None:
        """What keeps the machine from joining: it becomes the machine's problem, and nothing else follows from it."""
        ...

    async def needs(self, machine: str) -> Needs:
        """What an image without Slurm must be given."""
        ...

    async def join(self, machine: str, peer: TailnetPeer, facts: NodeFacts) -> JoinAnswer:
        """Accept the machine: bind its ticket to `peer.id` and keep its facts; the answer has the munge key.

        Ticket and caller were checked by `tokens.check_join`; the binding must be one step in the store, so that two
        devices cannot both be first.

        Raises:
            JoinRefused: `admission.check_facts` says no, another device was first, the ticket was closed meanwhile, or
                the head is not ready (`fatal=False`).
        """
        ...

    async def rejoin(self, caller: NodeCaller, peer: TailnetPeer, facts: NodeFacts, munge_key: str) -> JoinAnswer:
        """Accept a machine again that came with its node token: its agent lost its state, or the head its journal.

        Args:
            caller: whose token it is; the device was checked.
            peer: the device.
            facts: the machine's, as of now.
            munge_key: fingerprint of the munge key that it has; the answer has a key only when that is another one.

        Raises:
            JoinRefused: as `join`.
        """
        ...

    async def machine_for_node(self, token_hash: str) -> NodeCaller | None:
        """Whose node token has this hash; None when it is none's."""
        ...

    async def munge_exchange(self, machine: str, credential: str) -> str:
        """Check the machine's credential and answer with one of the head's.

        Raises:
            MungeError: the text goes to the agent: which kind of failure it is.
        """
        ...

    async def poll(self, machine: str, report: PollIn, hold_s: float) -> Sequence[Command]:
        """Take heartbeat and results; what the agent shall do, at once or within `hold_s` seconds."""
        ...

    def expects_logs(self, machine: str) -> bool:
        """The machine was asked for its logs: its next poll may be larger than others."""
        ...
