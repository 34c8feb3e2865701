"""The node agents' command queues, and the roster that all of them keep."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping
from typing import Any, Protocol

from meshd.api.node_commands import Command, CommandQueue
from meshd.api.node_schema import ResultIn, Verb
from meshd.plan.node_settings import Section

ROSTER_AGAIN_S = 10.0
"""The roster of a large cluster is long: an agent that never keeps it is not sent it with every poll."""
SECTION_AGAIN_S = 10.0
"""The same for a section of the node settings."""


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
        self._offered: dict[str, tuple[int, float]] = {}
        self._offered_sections: dict[str, dict[str, tuple[str, float]]] = {}
        self.roster: dict[str, str] = {}
        self.roster_version = 0
        self._has_roster: dict[str, int] = {}
        self._named_since: dict[str, int] = {}

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

    def hasten(self, machine: str) -> bool:
        """End the agent's held poll, so that it comes again at once; False when it may be at work on a command."""
        return self.of(machine).hasten()

    def keep(self, roster: Mapping[str, str], alive: Collection[str], joined: Collection[str]) -> None:
        """Tell the joined agents a changed roster, and forget the queues of machines that are no more.

        Args:
            roster: slot name to tailnet address.
            alive: all machines that are not GONE.
            joined: those whose agent polls.
        """
        for name in self._queues.keys() - set(alive):
            del self._queues[name]
            self._offered.pop(name, None)
            self._offered_sections.pop(name, None)
            self._has_roster.pop(name, None)
        if roster == self.roster:
            return
        before, self.roster, self.roster_version = self.roster, dict(roster), self.roster_version + 1
        new = {slot: self.roster_version for slot, address in roster.items() if before.get(slot) != address}
        self._named_since = {**{slot: at for slot, at in self._named_since.items() if slot in roster}, **new}
        for name in joined:
            self.of(name).put("roster", {"roster": self.roster, "version": self.roster_version})

    def expects_logs(self, machine: str) -> bool:
        """The machine was asked for its logs, so its next poll may be larger."""
        return machine in self._queues and self._queues[machine].expects_logs

    def offer_roster(self, machine: str, has_version: int, now_s: float) -> None:
        """Send the roster to an agent that tells another version, at most every ROSTER_AGAIN_S seconds."""
        self._has_roster[machine] = has_version
        if has_version == self.roster_version:
            self._offered.pop(machine, None)
            return
        version, at_s = self._offered.get(machine, (-1, 0.0))
        if version != self.roster_version or now_s >= at_s + ROSTER_AGAIN_S:
            self._offered[machine] = (self.roster_version, now_s)
            self.of(machine).put("roster", {"roster": self.roster, "version": self.roster_version})

    def knows(self, machine: str, slots: Iterable[str]) -> bool:
        """Whether the agent told that it has a roster with these slots at their present addresses."""
        needs = max((self._named_since.get(slot, self.roster_version + 1) for slot in slots), default=0)
        return needs <= self._has_roster.get(machine, -1) <= self.roster_version

    def offer_section(self, machine: str, section: Section, now_s: float) -> None:
        """Send a section that the agent does not hold, at most every SECTION_AGAIN_S seconds."""
        offered = self._offered_sections.setdefault(machine, {})
        digest, at_s = offered.get(section.name, ("", 0.0))
        if digest != section.wanted.digest or now_s >= at_s + SECTION_AGAIN_S:
            offered[section.name] = (section.wanted.digest, now_s)
            args = {"name": section.name, "digest": section.wanted.digest, "value": section.value}
            self.of(machine).put("section", args)

    def holds_sections(self, machine: str) -> None:
        """The agent holds all its sections: the next change is sent at once."""
        self._offered_sections.pop(machine, None)

    def settle(self, machine: str, results: Collection[ResultIn]) -> list[ResultIn]:
        """Take an agent's results; those that end a command, with what their verb's model reads of them."""
        return [result for _, result in self.of(machine).settle(results)]

    async def poll(self, machine: str, results: Collection[ResultIn], hold_s: float) -> list[Command]:
        """Take an agent's results, and wait for its next commands."""
        self.settle(machine, results)
        return await self.of(machine).take(hold_s)


async def _outcome(queue: CommandQueue, command_id: str, timeout_s: float) -> ResultIn | None:
    """A command's result; without one, also when the wait is cancelled, it is taken out of the queue."""
    result: ResultIn | None = None
    try:
        result = await queue.result(command_id, timeout_s)
    finally:
        if result is None:
            queue.drop(command_id)
    return result
