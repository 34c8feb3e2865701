"""Time in tests: it moves when a test says so, never by itself."""

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

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.t_s) + self.shift

    def monotonic_s(self) -> float:
        return self.t_s

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        self.t_s += delay_s
        await asyncio.sleep(0)


class SimClock(HandClock):
    """Time that only its owner moves: who sleeps, waits for its turn."""

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        await asyncio.sleep(0)
