"""The node agents' command queues, and the roster that all of them keep."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from typing import Any, Protocol

from meshd.api.node_commands import Command, CommandQueue
from meshd.api.node_schema import ResultIn, Verb


class Asks(Protocol):
    """Asks node agents."""

    async def ask(
        self, machine: str, verb: Verb, args: Mapping[str, Any], timeout_s: float, *, first: bool = False
    ) -> ResultIn | None:
        """See AgentQueues."""
        ...


class AgentQueues:
    """One queue for each machine that is alive."""

    def __init__(self) -> None:
        self._queues: dict[str, CommandQueue] = {}
        self.roster: dict[str, str] = {}
        self.roster_version = 0

    def of(self, machine: str) -> CommandQueue:
        """The machine's queue."""
        return self._queues.setdefault(machine, CommandQueue())

    async def command(self, machine: str, verb: Verb, args: Mapping[str, Any], timeout_s: float) -> str:
        """Order something and wait for its end; returns "" or why it failed."""
        return await self.order(machine, verb, args, timeout_s)

    def order(self, machine: str, verb: Verb, args: Mapping[str, Any], timeout_s: float) -> Awaitable[str]:
        """As `command`, but it is in the queue when this returns; a wait that is cancelled takes it out again."""
        queue = self.of(machine)
        command_id = queue.put(verb, args)

        async def wait() -> str:
            result = await _outcome(queue, command_id, timeout_s)
            if result is None:
                return f"its agent did not answer within {timeout_s:g} s"
            return "" if result.ok else result.detail or "its agent did not say why"

        return wait()

    async def ask(
        self, machine: str, verb: Verb, args: Mapping[str, Any], timeout_s: float, *, first: bool = False
    ) -> ResultIn | None:
        """Order something, before all else with `first`; its result, or None when none came in time."""
        queue = self.of(machine)
        return await _outcome(queue, queue.put(verb, args, first=first), timeout_s)

    def keep(self, roster: Mapping[str, str], alive: Collection[str], joined: Collection[str]) -> None:
        """Tell the joined agents a changed roster, and forget the queues of machines that are no more.

        Args:
            roster: slot name to tailnet address.
            alive: all machines that are not GONE.
            joined: those whose agent polls.
        """
        for name in self._queues.keys() - set(alive):
            del self._queues[name]
        if roster == self.roster:
            return
        self.roster, self.roster_version = dict(roster), self.roster_version + 1
        for name in joined:
            queue = self.of(name)
            for command in queue.pending():
                if command.verb == "roster":
                    queue.drop(command.id)
            queue.put("roster", {"roster": self.roster, "version": self.roster_version})

    async def poll(self, machine: str, results: Collection[ResultIn], hold_s: float) -> list[Command]:
        """Take an agent's results, and wait for what it shall do next."""
        queue = self.of(machine)
        queue.settle(results)
        return await queue.take(hold_s)


async def _outcome(queue: CommandQueue, command_id: str, timeout_s: float) -> ResultIn | None:
    """A command's result; without one, also when the wait is cancelled, it is taken out of the queue."""
    result: ResultIn | None = None
    try:
        result = await queue.result(command_id, timeout_s)
    finally:
        if result is None:
            queue.drop(command_id)
    return result
