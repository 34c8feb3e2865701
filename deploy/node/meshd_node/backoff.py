"""Pauses between tries: they double and are spread, so that a fleet does not come back as one."""

from __future__ import annotations

import random
from collections.abc import Callable

DOUBLINGS_MAX = 64
"""No pause grows further than by so many; more, and a float would overflow in the end."""


def half_more_or_less() -> float:
    """A factor from 0.5 to 1.5."""
    return 0.5 + random.random()  # noqa: S311 - spreading, not secrecy


class Backoff:
    """Pauses that grow from `first_s` to `limit_s`.

    Args:
        first_s: the first pause.
        limit_s: the longest one.
        spread: a factor for each of them.

    Attributes:
        failures: how many tries in a row did not work.
    """

    def __init__(self, first_s: float, limit_s: float, spread: Callable[[], float] = half_more_or_less) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._spread = spread
        self.failures = 0

    def next_s(self) -> float:
        """It did not work: the next pause in seconds."""
        doublings = min(self.failures, DOUBLINGS_MAX)
        self.failures += 1
        return min(self._first_s * 2.0**doublings, self._limit_s) * self._spread()

    def reset(self) -> None:
        """It worked."""
        self.failures = 0
