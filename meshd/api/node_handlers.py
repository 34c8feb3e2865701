"""What the node API calls in the daemon."""

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
    """The daemon's side. Every call may be repeated: an answer may be lost on its way to the machine.

    Any call may raise TailnetError, SlurmError, StoreError or MungeError: the answer has the agent try again.
    """

    async def whois(self, ip: str) -> TailnetPeer | None:
        """The tailnet device that has this address; None when there is none.

        Raises:
            TailnetError: tailscaled does not answer. Nothing follows from that for any machine.
        """
        ...

    async def machine_for_join(self, token_hash: str) -> JoinTicket | None:
        """The ticket with this hash; None when there is none, or its machine is leaving.

        A ticket with a `gang` is that of all its machines: `ticket_in_gang` says whose it is in a caller's hands.
        """
        ...

    async def ticket_in_gang(self, ticket: JoinTicket, peer: TailnetPeer) -> JoinTicket:
        """The ticket as that of the gang's machine whose name the calling device has.

        Raises:
            JoinRefused: the gang has no such machine that may join.
        """
        ...

    async def join_refused(self, machine: str, peer: TailnetPeer, error: JoinRefused) -> None:
        """This device sent the machine's join token and was refused: remember the reason for people."""
        ...

    async def check_device(self, machine: str, peer: TailnetPeer) -> None:
        """Check that the device that sends the machine's join token may be this machine.

        Raises:
            JoinRefused: it is another machine's.
        """
        ...

    async def proved(self, caller: NodeCaller) -> None:
        """The machine's own device used its node token: close its join token for good."""
        ...

    async def take_device(self, machine: str, peer: TailnetPeer) -> None:
        """The machine's node token comes from another device than the one it joined with: accept it, or refuse.

        Raises:
            JoinRefused: it is a copy of the machine, or the old device is still there.
            NotNow: the tailnet cannot be read now, or its answer may be wrong.
        """
        ...

    async def trouble(self, machine: str, stage: str, text: str) -> None:
        """What keeps the machine from joining. It becomes the machine's problem; nothing else follows."""
        ...

    async def needs(self, machine: str) -> Needs:
        """What an image without Slurm must get."""
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
        """Accept a machine again that shows its node token: its agent lost its state, or the head its journal.

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
        """The machine whose node token has this hash; None when there is none."""
        ...

    async def munge_exchange(self, machine: str, credential: str) -> str:
        """Check the machine's credential and answer with one of the head's.

        Raises:
            MungeError: its text goes to the agent.
        """
        ...

    async def poll(self, machine: str, report: PollIn, hold_s: float) -> Sequence[Command]:
        """Take heartbeat and results; return the commands for the agent, at once or within `hold_s` seconds."""
        ...

    def expects_logs(self, machine: str) -> bool:
        """Whether the machine was asked for its logs: then its next poll may be larger than others."""
        ...
