"""Pauses between tries: they grow with the square and are spread, so that a fleet does not come back as one."""

from __future__ import annotations

import random


class Backoff:
    """0.1 s, 0.4 s, 0.9 s ... up to `limit_s`, each times 0.5 to 1.5."""

    def __init__(self, limit_s: float = 10.0, rng: random.Random | None = None) -> None:
        self._limit_s = limit_s
        self._rng = rng or random.Random()  # noqa: S311 - spreading, not secrecy
        self._tries = 0

    def next_s(self) -> float:
        """The next pause in seconds."""
        self._tries += 1
        return min(0.1 * self._tries**2, self._limit_s) * (0.5 + self._rng.random())

    def reset(self) -> None:
        """It worked."""
        self._tries = 0
