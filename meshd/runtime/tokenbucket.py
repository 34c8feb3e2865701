"""PURE: token buckets, one for each key, to limit rates."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

KEYS_MAX = 20_000


class TokenBuckets:
    """A bucket for each key; full at first.

    Args:
        burst: tokens of a full bucket.
        every_s: seconds until one token comes back.
        keys_max: the most buckets in memory. The least recently used one is dropped, and is full again.
    """

    def __init__(self, burst: int, every_s: float, keys_max: int = KEYS_MAX) -> None:
        self._burst = burst
        self._every_s = every_s
        self._max = keys_max
        self._full_at_s: OrderedDict[Hashable, float] = OrderedDict()

    def wait_s(self, key: Hashable, now_s: float) -> float:
        """Seconds until a token is free; 0 when one is."""
        full_at_s = max(self._full_at_s.get(key, now_s), now_s)
        return max(0.0, full_at_s + self._every_s - self._burst * self._every_s - now_s)

    def take(self, key: Hashable, now_s: float) -> float:
        """Take a token, in advance if none is free. Returns the seconds until it is free."""
        wait_s = self.wait_s(key, now_s)
        self._full_at_s[key] = max(self._full_at_s.get(key, now_s), now_s) + self._every_s
        self._full_at_s.move_to_end(key)
        while len(self._full_at_s) > self._max:
            self._full_at_s.popitem(last=False)
        return wait_s

    def try_take(self, key: Hashable, now_s: float) -> bool:
        """Take a token if one is free; whether it did."""
        if self.wait_s(key, now_s) > 0:
            return False
        self.take(key, now_s)
        return True
