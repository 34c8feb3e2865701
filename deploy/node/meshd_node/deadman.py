"""The dead-man switch: a machine that nobody looks after and that runs nothing ends itself."""

from __future__ import annotations

import time
from collections.abc import Callable


class DeadMan:
    """Counts the time since the last word with the head that was not a refusal.

    Args:
        limit_s: after this long without contact it is due; 0 switches it off.
        monotonic: seconds that never jump back.
    """

    def __init__(self, limit_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._monotonic = monotonic
        self._contact = monotonic()

    def contact(self) -> None:
        """The head took our word just now."""
        self._contact = self._monotonic()

    def left_s(self) -> float:
        """Seconds until it is due; 0 when it is."""
        if self.limit_s <= 0:
            return float("inf")
        return max(0.0, self._contact + self.limit_s - self._monotonic())
