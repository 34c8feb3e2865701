"""RunPod's quotas: what is left in each window, as the RateLimit header tells, and waiting for the next one."""

from __future__ import annotations

import hashlib
import re
import threading

from meshd.errors import RateLimited
from meshd.runtime.clock import Clock, SystemClock

_MEMBER = re.compile(r'"([^"]*)"((?:\s*;\s*[a-z]+=\d+)*)')
_PARAMETER = re.compile(r"([a-z]+)=(\d+)")


def parse_rate_limit(header: str) -> dict[str, tuple[int, int]]:
    """What is left of each window: {window: (requests left, seconds until it begins anew)}.

    Args:
        header: the RateLimit header (IETF draft ratelimit-headers), e.g. `"minute";r=0;t=12, "hour";r=2800;t=1812`.
            What cannot be read is left out.
    """
    windows: dict[str, tuple[int, int]] = {}
    for name, parameters in _MEMBER.findall(header):
        values = dict(_PARAMETER.findall(parameters))
        if "r" in values and "t" in values:
            windows[name] = (int(values["r"]), int(values["t"]))
    return windows


def wait_s(header: str) -> float | None:
    """Seconds until a used-up window begins anew; None when none is used up."""
    waits = [seconds for left, seconds in parse_rate_limit(header).values() if left == 0]
    return float(max(waits)) if waits else None


class Quota:
    """Lets calls through while every window has some left. Safe to share between event loops and threads.

    Args:
        max_wait_s: a call that would have to wait longer is refused at once.
        clock: where time comes from.
    """

    def __init__(self, max_wait_s: float, clock: Clock | None = None) -> None:
        self._max_wait_s = max_wait_s
        self._clock = clock or SystemClock()
        self._windows: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def note(self, header: str) -> None:
        """Take over what an answer's RateLimit header tells."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            for name, (left, seconds) in parse_rate_limit(header).items():
                self._windows[name] = (left, now_s + seconds)

    async def turn(self, *, provider: str, operation: str) -> None:
        """Wait until a call may go out.

        Raises:
            RateLimited: the quota is used up for more than `max_wait_s`. Nothing was sent.
        """
        while True:
            wait = self._take()
            if wait <= 0:
                return
            if wait > self._max_wait_s:
                text = f"the account's quota of calls is used up for {wait:.0f} s"
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


_shared: dict[tuple[str, str, float], Quota] = {}
_shared_lock = threading.Lock()


def shared_quota(key: str, base_url: str, max_wait_s: float) -> Quota:
    """The process-wide quota of the account that `key` opens. The key itself is not kept."""
    fingerprint = hashlib.sha256(key.encode()).hexdigest()
    with _shared_lock:
        return _shared.setdefault((fingerprint, base_url, max_wait_s), Quota(max_wait_s))
