"""Which slot has which tailnet address, as every node and the head shall know it."""

from __future__ import annotations

import socket
from collections.abc import Callable

from meshd.api.schema import CheckRow
from meshd.daemon.nodes.agents import AgentQueues
from meshd.daemon.nodes.head_names import HeadNames
from meshd.model.machine import IN_SLURM
from meshd.store.journal import Journal


class Roster:
    """Keeps the agents' rosters, and the head's.

    Args:
        journal: the machines.
        agents: who is told.
        head: keeps the nodes' names on the head; the head's own name is left to its administrator.
        head_tailnet_ip: the head's tailnet address, "" when not known.
    """

    def __init__(
        self, journal: Journal, agents: AgentQueues, head: HeadNames, head_tailnet_ip: Callable[[], str]
    ) -> None:
        self._journal = journal
        self._agents = agents
        self._head = head
        self._head_tailnet_ip = head_tailnet_ip
        self._told = (-1, "")
        self._slots: dict[str, str] = {}

    def look(self) -> None:
        """Tell what is new; only a change of a record or of the head's address can be. The head's file is looked at."""
        own = self._head_tailnet_ip()
        if self._told != (self._journal.revision, own):
            self._told = self._journal.revision, own
            machines = self._journal.machines()
            joined = [m for m in machines if m.facts is not None and m.phase in IN_SLURM]
            self._slots = {m.slot: m.tailnet_ip for m in joined if not m.left_slurm}
            head = {socket.gethostname().split(".")[0]: own} if own else {}
            roster = dict(sorted({**self._slots, **head}.items()))
            self._agents.keep(roster, {m.name for m in machines}, {m.name for m in joined})
        self._head.keep(self._slots)

    async def check(self) -> CheckRow:
        """For `meshctl doctor`: the names on the head."""
        return await self._head.check(self._head_tailnet_ip())
