"""Which slot has which tailnet address, as every node and the head shall know it."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from meshd.api.schema import CheckRow
from meshd.codes import CheckName
from meshd.daemon.controller import Controller
from meshd.daemon.nodes.agents import AgentQueues
from meshd.daemon.nodes.head_names import HeadNames
from meshd.daemon.reporting import Check
from meshd.model.machine import IN_SLURM
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.tailnet.watcher import TailnetWatcher


class Roster(Controller):
    """Keeps the agents' rosters, and the head's.

    Args:
        journal: the machines.
        agents: who is told.
        head: keeps the nodes' names on the head; the head's own name is left to its administrator.
        tailnet: knows the head's address.
        clock: time.
    """

    name = "roster"

    def __init__(
        self, journal: Journal, agents: AgentQueues, head: HeadNames, tailnet: TailnetWatcher, clock: Clock
    ) -> None:
        super().__init__(clock)
        self._journal = journal
        self._agents = agents
        self._head = head
        self._tailnet = tailnet
        self._told = (-1, "")
        self._slots: dict[str, str] = {}

    async def reconcile(self) -> None:
        """Tell what is new. It is woken after each tick."""
        self.look()

    def checks(self) -> Iterable[Check]:
        """The names on the head."""
        yield Check(CheckName.NODE_NAMES, self.check)

    def look(self) -> None:
        """Tell what is new; only a change of a record or of the head's address can be. The head's file is looked at."""
        own = self._tailnet.head_tailnet_ip
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
        return await self._head.check(self._tailnet.head_tailnet_ip)
