"""The last lines of slurmd's log, asked of the node agents: once when a node becomes unfit, and when somebody asks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from meshd.daemon.controller import Controller
from meshd.daemon.nodes.agents import Asks
from meshd.obs.log import redact
from meshd.runtime.clock import Clock

LINES = 20
LINE_CHARS_MAX = 300
KEPT_MACHINES_MAX = 500
ASK_TIMEOUT_S = 30.0
NOW_TIMEOUT_S = 3.0
"""Somebody waits for the answer."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of a log, oldest line first."""

    at: datetime
    lines: tuple[str, ...]


class NodeLogs(Controller):
    """Asks for logs and keeps the newest one of each machine, bounded in lines and characters."""

    name = "node_logs"

    def __init__(self, agents: Asks, clock: Clock) -> None:
        super().__init__(clock)
        self._agents = agents
        self._tails: dict[str, LogTail] = {}
        self._wanted: dict[str, None] = {}

    def want(self, machine: str) -> None:
        """Have this machine's log fetched soon. When too many are wanted already, it is not."""
        if len(self._wanted) < KEPT_MACHINES_MAX:
            self._wanted[machine] = None
            self.wake()

    async def reconcile(self) -> None:
        """Fetch the logs that are wanted, one after the other."""
        while self._wanted:
            machine = next(iter(self._wanted))
            del self._wanted[machine]
            await self.fetch(machine, ASK_TIMEOUT_S)

    async def fetch(self, machine: str, timeout_s: float = NOW_TIMEOUT_S) -> LogTail | None:
        """The log now; the kept one when its agent does not answer in time, None where there is none."""
        args = {"lines": LINES, "of": "slurmd"}
        result = await self._agents.ask(machine, "collect_logs", args, timeout_s)
        logs = result.data.get("logs") if result is not None and result.ok else None
        if isinstance(logs, dict):
            tail = LogTail(self._clock.now(), _tail(logs))
            if machine in self._tails or len(self._tails) < KEPT_MACHINES_MAX:
                self._tails[machine] = tail
            return tail
        return self._tails.get(machine)

    def keep(self, alive: Collection[str]) -> None:
        """Forget the machines that are no more."""
        for name in self._tails.keys() - set(alive):
            del self._tails[name]


def _tail(logs: dict[object, object]) -> tuple[str, ...]:
    """The last lines of the longest of these logs: slurmd writes to its file or to the unit's journal."""
    texts = [text for text in logs.values() if isinstance(text, str)]
    text = redact(max(texts, key=len, default=""))
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return tuple("".join(c if c.isprintable() else "?" for c in line)[:LINE_CHARS_MAX] for line in lines[-LINES:])
