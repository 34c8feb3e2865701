"""The dead-man switch: a machine without contact to the head, and without jobs, powers itself off."""

from __future__ import annotations

import time
from collections.abc import Callable


class DeadMan:
    """Measures the time since the head last accepted a call.

    Args:
        limit_s: the switch is due after this long without contact; 0 turns it off.
        monotonic: seconds that never jump back.
    """

    def __init__(self, limit_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._monotonic = monotonic
        self._contact = monotonic()

    def contact(self) -> None:
        """Record that the head just accepted a call."""
        self._contact = self._monotonic()

    def left_s(self) -> float:
        """Seconds until it is due; 0 when it is."""
        if self.limit_s <= 0:
            return float("inf")
        return max(0.0, self._contact + self.limit_s - self._monotonic())
