"""Spacing of calls, for clouds with a rate limit per second.

All users of one key in this process share a spacing, because the cloud counts calls per account.
"""

from __future__ import annotations

import hashlib
import threading

from meshd.errors import RateLimited
from meshd.runtime.clock import Clock, SystemClock


class Spacing:
    """Lets callers through one by one, at least `spacing_s` seconds apart, in the order in which they came.

    Can be shared between event loops and threads: a turn is reserved under a lock and waited for outside it.

    Args:
        spacing_s: the shortest time between two turns; 0 for no limit.
        max_wait_s: a caller that would wait longer is refused at once.
        clock: the source of time.
    """

    def __init__(self, spacing_s: float, max_wait_s: float, clock: Clock | None = None) -> None:
        self._spacing_s = spacing_s
        self._max_wait_s = max_wait_s
        self._clock = clock or SystemClock()
        self._next_s = float("-inf")
        self._claimed_s = float("-inf")
        self._lock = threading.Lock()

    async def turn(self, *, provider: str, operation: str) -> None:
        """Wait for this caller's turn.

        Raises:
            RateLimited: the turn is more than `max_wait_s` away. No turn was used.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            wait_s = max(0.0, self._next_s - now_s)
            if wait_s > self._max_wait_s:
                raise RateLimited(
                    f"{wait_s:.0f} s until the next call is allowed",
                    retry_after_s=wait_s,
                    provider=provider,
                    operation=operation,
                )
            self._next_s = now_s + wait_s + self._spacing_s
        if wait_s > 0:
            await self._clock.sleep(wait_s)

    def claim(self) -> bool:
        """Whether `spacing_s` has passed since the last successful claim. If so, this claim succeeds.

        For a caller that waited for something else between its turn and the call: turns are reserved ahead, but the
        cloud counts when the calls arrive.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s < self._claimed_s + self._spacing_s:
                return False
            self._claimed_s = now_s
            return True


_shared: dict[tuple[str, str, float, float], Spacing] = {}
_shared_lock = threading.Lock()


def shared_spacing(key: str, name: str, spacing_s: float, max_wait_s: float) -> Spacing:
    """The process-wide spacing called `name` of the account that `key` opens. The key itself is not stored."""
    fingerprint = hashlib.sha256(key.encode()).hexdigest()
    with _shared_lock:
        return _shared.setdefault((fingerprint, name, spacing_s, max_wait_s), Spacing(spacing_s, max_wait_s))
