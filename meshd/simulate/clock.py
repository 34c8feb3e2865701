"""Time that moves when its owner says so, never by itself."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta


class HandClock:
    """Time that passes by sleeping, at once, and by setting `t_s`.

    Attributes:
        t_s: seconds since `start`, by the clock that only goes forward.
        shift: how far the time of day was set.
        slept: every sleep, in seconds.
    """

    def __init__(self, start: datetime = datetime(2026, 3, 1, 12, tzinfo=UTC)) -> None:
        self.start = start
        self.t_s = 0.0
        self.shift = timedelta()
        self.slept: list[float] = []
        self._made_of: tuple[float, timedelta] | None = None
        self._now = start

    def now(self) -> datetime:
        """The time of day, UTC-aware."""
        made_of = (self.t_s, self.shift)
        if self._made_of != made_of:  # it is asked for far more often than it moves
            self._made_of, self._now = made_of, self.start + timedelta(seconds=self.t_s) + self.shift
        return self._now

    def monotonic_s(self) -> float:
        """Seconds that never jump back."""
        return self.t_s

    async def sleep(self, delay_s: float) -> None:
        """Let the time pass, at once."""
        self.slept.append(delay_s)
        self.t_s += delay_s
        await asyncio.sleep(0)


class SimClock(HandClock):
    """Time that only its owner moves: who sleeps, waits for its turn."""

    async def sleep(self, delay_s: float) -> None:
        """Let others go on."""
        self.slept.append(delay_s)
        await asyncio.sleep(0)
