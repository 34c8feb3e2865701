"""Which slot has which tailnet address, as every node shall know it."""

from __future__ import annotations

import socket
from collections.abc import Callable

from meshd.daemon.agents import AgentQueues
from meshd.model.machine import IN_SLURM
from meshd.store.journal import Journal


class Roster:
    """Keeps the agents' rosters.

    Args:
        journal: the machines.
        agents: who is told.
        own_ipv4: the head's tailnet address, "" when not known.
    """

    def __init__(self, journal: Journal, agents: AgentQueues, own_ipv4: Callable[[], str]) -> None:
        self._journal = journal
        self._agents = agents
        self._own_ipv4 = own_ipv4
        self._told = (-1, "")

    def look(self) -> None:
        """Tell the agents what is new; only a change of a record or of the head's address can be."""
        own = self._own_ipv4()
        if self._told == (self._journal.revision, own):
            return
        self._told = self._journal.revision, own
        machines = self._journal.machines()
        joined = [m for m in machines if m.facts is not None and m.phase in IN_SLURM]
        roster: dict[str, str] = {m.slot: m.tailnet_ip for m in joined if not m.left_slurm}
        if own:
            roster[socket.gethostname().split(".")[0]] = own
        self._agents.keep(dict(sorted(roster.items())), {m.name for m in machines}, {m.name for m in joined})
