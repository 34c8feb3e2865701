"""Time, so that everything that waits or stamps can be tested without waiting."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The time of day, time that only grows, and waiting."""

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
    """The real one."""

    def now(self) -> datetime:
        """The time of day, UTC-aware."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Seconds that never jump back."""
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds."""
        await asyncio.sleep(delay_s)
