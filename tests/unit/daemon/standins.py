"""What stands beside a service of the daemon in its tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshd.api.node_schema import PollIn, ResultIn, Verb


class MungeKey:
    """Nobody changes the munge key."""

    def note_report(self, machine: str, report: PollIn) -> None:
        pass


class LogAgent:
    """An agent that has a log, or does not answer."""

    def __init__(self) -> None:
        self.text: str | None = ""
        self.more: dict[str, str] = {}
        self.asked: list[tuple[str, Verb, Mapping[str, Any]]] = []

    async def ask(
        self, machine: str, verb: Verb, args: Mapping[str, Any], timeout_s: float, *, first: bool = False
    ) -> ResultIn | None:
        self.asked.append((machine, verb, args))
        return (
            None if self.text is None else ResultIn(id="1", ok=True, data={"logs": {**self.more, "slurmd": self.text}})
        )


@dataclass
class Bucket:
    """A cloud's limit, as EC2 describes it."""

    burst: float
    per_s: float
    tokens: float = -1.0
    at_s: float = 0.0

    def take(self, now_s: float) -> bool:
        if self.tokens < 0:
            self.tokens = self.burst
        self.tokens = min(self.burst, self.tokens + (now_s - self.at_s) * self.per_s)
        self.at_s = now_s
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True
