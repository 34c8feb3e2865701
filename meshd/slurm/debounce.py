"""Gather changes: wait for a quiet moment, but not for ever."""

from __future__ import annotations

from meshd.runtime.clock import Clock


class Debounce:
    """A window that each change prolongs, up to a bound counted from the first change."""

    def __init__(self, clock: Clock, *, quiet_s: float, max_wait_s: float) -> None:
        """Wait until `quiet_s` seconds bring no change, at most `max_wait_s` seconds after the first one."""
        self._clock = clock
        self._quiet_s = quiet_s
        self._max_wait_s = max_wait_s
        self._first_at: float | None = None
        self._last_at = 0.0

    def touch(self) -> None:
        """A change came."""
        self._last_at = self._clock.monotonic_s()
        if self._first_at is None:
            self._first_at = self._last_at

    async def settled(self) -> None:
        """Wait for the end of the window, and begin a new one."""
        while self._first_at is not None:
            end = min(self._last_at + self._quiet_s, self._first_at + self._max_wait_s)
            left_s = end - self._clock.monotonic_s()
            if left_s <= 0:
                break
            await self._clock.sleep(left_s)
        self._first_at = None
