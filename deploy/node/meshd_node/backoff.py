"""Exponential backoff with jitter, so that a fleet does not retry at the same moment."""

from __future__ import annotations

import random
from collections.abc import Callable

DOUBLINGS_MAX = 64
"""The most doublings of a pause, so that the float does not overflow."""


def jitter() -> float:
    """A factor from 0.5 to 1.5."""
    return 0.5 + random.random()  # noqa: S311 - spreading, not secrecy


class Backoff:
    """Pauses that grow from `first_s` to `limit_s`.

    Args:
        first_s: the first pause.
        limit_s: the longest one.
        spread: returns a random factor for each pause.

    Attributes:
        failures: consecutive failures.
    """

    def __init__(self, first_s: float, limit_s: float, spread: Callable[[], float] = jitter) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._spread = spread
        self.failures = 0

    def next_s(self) -> float:
        """Record a failure. Returns the next pause in seconds."""
        doublings = min(self.failures, DOUBLINGS_MAX)
        self.failures += 1
        return min(self._first_s * 2.0**doublings, self._limit_s) * self._spread()

    def reset(self) -> None:
        """Record a success."""
        self.failures = 0
