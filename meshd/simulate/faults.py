"""What the outside world may do to meshd: kill it, lie to it, be late. And what meshd must not do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Crash(BaseException):
    """kill -9 of the daemon, at this very point."""


class Violation(AssertionError):
    """meshd broke a promise. Kept in a list, since a task's exception is only logged."""

    seen: ClassVar[list[str]] = []

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.seen.append(text)


class Answer(StrEnum):
    """What meshd is told of a create call."""

    MADE = "made"
    SOLD_OUT = "sold out"
    BUSY = "busy"
    CUT = "cut"
    KILLED = "kill -9 before it comes"


class Wrong(StrEnum):
    """What is wrong with the answer to a gang's call, however often it is made."""

    TOO_FEW = "one machine is not made"
    PART_REFUSED = "half are made, and it is refused then"
    TWICE = "it shows the first machine in the place of the last, too"
    OTHERS = "it shows other machines"


@dataclass(frozen=True)
class Called:
    """What becomes of a create call.

    Attributes:
        answered_after_s: then the answer comes; from LAUNCH_TIMEOUT_S on meshd has given up by then.
        made_after_s: then there is a machine; None for never.
        lag_s: how long after that it is listed.
    """

    answer: Answer
    made_after_s: float | None = None
    answered_after_s: float = 0.0
    lag_s: float = 0.0
