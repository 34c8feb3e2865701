"""Commands on their way to node agents: one queue for each machine, in memory.

A lost queue does no harm: the planner sees what is still to do and orders it again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshd.api import node_results
from meshd.api.node_schema import ResultIn, Verb, revealed

REDELIVER_S = 2.0
KEPT_OUTCOMES = 16
"""Callers wait for a result at once: only the last few results are read later."""
DETAIL_KEPT_CHARS = 1000
PENDING_MAX = 64
"""Commands without a result for one machine. Most of them are `greet`, during a rotation."""


@dataclass(frozen=True, slots=True)
class Command:
    """One order to an agent. Its arguments may hold keys, so the repr leaves them out."""

    id: str
    verb: Verb
    args: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_wire(self) -> dict[str, Any]:
        """As `revealed`."""
        return {"id": self.id, "verb": self.verb, "args": revealed(self.args)}


@dataclass(slots=True)
class _Pending:
    command: Command
    delivered_at: float | None = None


class CommandQueue:
    """The commands that one machine's agent has not ended yet.

    A command is delivered again with each poll until a result with its id arrives. The agent carries out an id once.

    Args:
        redeliver_s: a delivered command without a result is not delivered again before this.
    """

    def __init__(self, redeliver_s: float = REDELIVER_S) -> None:
        self._redeliver_s = redeliver_s
        self._pending: dict[str, _Pending] = {}
        self._outcomes: deque[ResultIn] = deque(maxlen=KEPT_OUTCOMES)
        self._waiters: dict[str, list[asyncio.Future[ResultIn]]] = {}
        self._wake = asyncio.Event()
        self._turn = 0

    def put(self, verb: Verb, args: Mapping[str, Any] | None = None, *, first: bool = False) -> str:
        """Order something and wake a held poll. The same verb with the same arguments is pending once.

        A newer roster takes the place of an older one, and a newer value of a section that of an older one. When too
        much is pending, the oldest order ends without success.

        Args:
            verb: what.
            args: its arguments.
            first: deliver it before all others.

        Returns:
            The command's id, or that of an equal command that is pending.
        """
        args = dict(args or {})  # not deeper: all agents share one roster
        for pending in self._pending.values():
            if pending.command.verb == verb and pending.command.args == args:
                return pending.command.id
        if verb in _NEWEST_ONLY:
            for older in [one.command.id for one in self._pending.values() if _same_thing(one.command, verb, args)]:
                self.drop(older)
        while len(self._pending) >= PENDING_MAX:
            oldest = next(iter(self._pending))
            self._end(oldest, ResultIn(id=oldest, ok=False, detail="too many commands were pending for its machine"))
        command = Command(secrets.token_hex(8), verb, args)
        mine = {command.id: _Pending(command)}
        self._pending = {**mine, **self._pending} if first else {**self._pending, **mine}
        self._wake.set()
        return command.id

    def settle(self, results: Iterable[ResultIn]) -> list[tuple[Command, ResultIn]]:
        """Take results. Those with unknown ids (sent twice, or from before a restart of the head) are ignored.

        Returns:
            The commands that these results end, in their order.
        """
        ended = []
        for result in results:
            pending = self._pending.get(result.id)
            if pending is None:
                continue
            narrow = _narrowed(pending.command.verb, result)
            self._end(result.id, narrow)
            self._outcomes.append(narrow.model_copy(update={"data": {}}) if _is_large(pending.command.verb) else narrow)
            ended.append((pending.command, narrow))
        return ended

    def _end(self, command_id: str, result: ResultIn) -> None:
        self._pending.pop(command_id, None)
        for waiter in self._waiters.pop(command_id, ()):
            if not waiter.done():
                waiter.set_result(result)

    @property
    def expects_logs(self) -> bool:
        """The next poll may bring a result that is larger than others."""
        return any(_is_large(one.command.verb) for one in self._pending.values())

    async def take(self, hold_s: float) -> list[Command]:
        """The commands to deliver now; waits up to `hold_s` seconds for one.

        A newer call ends an older one with an empty list: only the newest poll is the agent's.
        """
        loop = asyncio.get_running_loop()
        self._turn += 1
        turn = self._turn
        self._wake.set()  # an older call looks up and sees that it is not the newest
        deadline = loop.time() + hold_s
        while turn == self._turn:
            due, next_due = self._due(loop.time())
            if due:
                return due
            wait_s = min(deadline, next_due) - loop.time()
            if deadline <= loop.time():
                return []
            self._wake = asyncio.Event()
            try:
                async with asyncio.timeout(max(wait_s, 0.0)):
                    await self._wake.wait()
            except TimeoutError:
                continue
        return []

    def hasten(self) -> bool:
        """End a held poll with no commands: a living agent polls again at once.

        Returns:
            False when a delivered command has no result yet: the agent may be busy with it and not poll.
        """
        if any(one.delivered_at is not None for one in self._pending.values()):
            return False
        self._turn += 1
        self._wake.set()
        return True

    async def result(self, command_id: str, timeout_s: float) -> ResultIn | None:
        """Wait for a command's result; None if it did not come in time or the id is unknown."""
        for result in self._outcomes:
            if result.id == command_id:
                return result
        if command_id not in self._pending:
            return None
        waiter: asyncio.Future[ResultIn] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(command_id, []).append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter
        except TimeoutError:
            return None
        finally:
            waiters = self._waiters.get(command_id, [])
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                self._waiters.pop(command_id, None)

    def pending(self) -> tuple[Command, ...]:
        """The commands without a result, oldest first."""
        return tuple(one.command for one in self._pending.values())

    def drop(self, command_id: str) -> None:
        """Stop delivering it. The agent may have carried it out already."""
        self._pending.pop(command_id, None)

    def _due(self, now: float) -> tuple[list[Command], float]:
        due, next_due = [], float("inf")
        for one in self._pending.values():
            if one.delivered_at is not None and now < one.delivered_at + self._redeliver_s:
                next_due = min(next_due, one.delivered_at + self._redeliver_s)
                continue
            one.delivered_at = now
            due.append(one.command)
        return due, next_due


_NEWEST_ONLY: tuple[Verb, ...] = ("roster", "section")


def _same_thing(older: Command, verb: Verb, args: Mapping[str, Any]) -> bool:
    """Whether both orders are about the same roster or section."""
    return older.verb == verb and older.args.get("name") == args.get("name")


def _narrowed(verb: Verb, result: ResultIn) -> ResultIn:
    """The result with only the fields of its verb's model; one that cannot be read counts as failed."""
    data, wrong = node_results.read(verb, result.data)
    detail = result.detail[:DETAIL_KEPT_CHARS]
    if wrong and result.ok:
        return ResultIn(id=result.id, ok=False, detail=f"its agent's answer to {verb} cannot be used: {wrong}")
    return ResultIn(id=result.id, ok=result.ok, detail=detail, data=data)


def _is_large(verb: Verb) -> bool:
    return verb == "collect_logs"
