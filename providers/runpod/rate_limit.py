"""RunPod's rate limits: the calls left in each window, from the RateLimit header, and waiting for the next window."""

from __future__ import annotations

import hashlib
import re
import threading

from meshd.errors import RateLimited
from meshd.runtime.clock import Clock, SystemClock

_MEMBER = re.compile(r'"([^"]*)"((?:\s*;\s*[a-z]+=\d+)*)')
_PARAMETER = re.compile(r"([a-z]+)=(\d+)")


def parse_rate_limit(header: str) -> dict[str, tuple[int, int]]:
    """The state of each window: {window: (requests left, seconds until it resets)}.

    Args:
        header: the RateLimit header (IETF draft ratelimit-headers), e.g. `"minute";r=0;t=12, "hour";r=2800;t=1812`.
            Unreadable parts are skipped.
    """
    windows: dict[str, tuple[int, int]] = {}
    for name, parameters in _MEMBER.findall(header):
        values = dict(_PARAMETER.findall(parameters))
        if "r" in values and "t" in values:
            windows[name] = (int(values["r"]), int(values["t"]))
    return windows


def wait_s(header: str) -> float | None:
    """Seconds until the last used-up window resets; None when no window is used up."""
    waits = [seconds for left, seconds in parse_rate_limit(header).values() if left == 0]
    return float(max(waits)) if waits else None


class RateLimitWindows:
    """Lets calls through while every window has requests left. Can be shared between event loops and threads.

    Args:
        max_wait_s: a call that would wait longer is refused at once.
        clock: the source of time.
    """

    def __init__(self, max_wait_s: float, clock: Clock | None = None) -> None:
        self._max_wait_s = max_wait_s
        self._clock = clock or SystemClock()
        self._windows: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def note(self, header: str) -> None:
        """Update the windows from an answer's RateLimit header."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            for name, (left, seconds) in parse_rate_limit(header).items():
                self._windows[name] = (left, now_s + seconds)

    async def turn(self, *, provider: str, operation: str) -> None:
        """Wait until a call is allowed.

        Raises:
            RateLimited: the wait would be longer than `max_wait_s`.
        """
        while True:
            wait = self._take()
            if wait <= 0:
                return
            if wait > self._max_wait_s:
                text = f"the account's rate limit is used up for {wait:.0f} s"
                raise RateLimited(text, retry_after_s=wait, provider=provider, operation=operation)
            await self._clock.sleep(wait)

    def _take(self) -> float:
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._windows = {name: window for name, window in self._windows.items() if window[1] > now_s}
            waits = [reset_s - now_s for left, reset_s in self._windows.values() if left <= 0]
            if waits:
                return max(waits)
            self._windows = {name: (left - 1, reset_s) for name, (left, reset_s) in self._windows.items()}
            return 0.0


_shared: dict[tuple[str, str, float], RateLimitWindows] = {}
_shared_lock = threading.Lock()


def shared_windows(key: str, base_url: str, max_wait_s: float) -> RateLimitWindows:
    """The process-wide rate limit of the account of `key`. The key itself is not stored."""
    fingerprint = hashlib.sha256(key.encode()).hexdigest()
    with _shared_lock:
        return _shared.setdefault((fingerprint, base_url, max_wait_s), RateLimitWindows(max_wait_s))
