"""The clock, as an argument: tests replace it and need not wait."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Time of day, monotonic time, and sleeping."""

    def now(self) -> datetime:
        """The time of day, UTC-aware."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never jump back."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The time of day, UTC-aware."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Seconds that never jump back, those in which the machine was suspended too."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds."""
        await asyncio.sleep(delay_s)


CLOCK_STEP = timedelta(seconds=3)
"""NTP moves the time of day by less than this between two looks, unless it sets it."""


class ClockSteps:
    """Tells how far the time of day was set: by how much it has moved otherwise than monotonic time.

    Args:
        clock: time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = self._now_ahead()

    @property
    def last(self) -> timedelta:
        """How far the time of day was set since the last `taken`; 0 where it only went on, or was slewed."""
        step = self._now_ahead() - self._ahead
        if abs(step) >= CLOCK_STEP:
            return step
        self._ahead += step
        return timedelta()

    def taken(self) -> None:
        """What `last` told is dealt with."""
        self._ahead = self._now_ahead()

    def _now_ahead(self) -> timedelta:
        return self._clock.now() - datetime.fromtimestamp(0, UTC) - timedelta(seconds=self._clock.monotonic_s())


async def sleep_until(event: asyncio.Event, delay_s: float, clock: Clock) -> None:
    """Wait for `delay_s` seconds, or less when the event is set before. Raises what the clock raises."""
    nap = asyncio.ensure_future(clock.sleep(delay_s))
    woken = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({nap, woken}, return_when=asyncio.FIRST_COMPLETED)
        if nap.done():
            nap.result()
    finally:
        nap.cancel()
        woken.cancel()
