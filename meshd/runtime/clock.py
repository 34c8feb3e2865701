"""The clock, as an argument: tests replace it and need not wait."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
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
        """Seconds that never jump back."""
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds."""
        await asyncio.sleep(delay_s)


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
