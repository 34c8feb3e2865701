"""PURE: token buckets, one for each key: a burst at once, then one token every few seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

KEYS_MAX = 20_000


class TokenBuckets:
    """Buckets that are full at first.

    Args:
        burst: tokens of a full bucket.
        every_s: seconds until a token is back.
        keys_max: so many keys are remembered; those that were not used for longest are forgotten, and full again.
    """

    def __init__(self, burst: int, every_s: float, keys_max: int = KEYS_MAX) -> None:
        self._burst = burst
        self._every_s = every_s
        self._max = keys_max
        self._full_at_s: OrderedDict[Hashable, float] = OrderedDict()

    def wait_s(self, key: Hashable, now_s: float) -> float:
        """Seconds until a token can be taken; 0 when there is one."""
        full_at_s = max(self._full_at_s.get(key, now_s), now_s)
        return max(0.0, full_at_s + self._every_s - self._burst * self._every_s - now_s)

    def take(self, key: Hashable, now_s: float) -> float:
        """Take a token, if need be one that is not back yet; seconds until it is."""
        wait_s = self.wait_s(key, now_s)
        self._full_at_s[key] = max(self._full_at_s.get(key, now_s), now_s) + self._every_s
        self._full_at_s.move_to_end(key)
        while len(self._full_at_s) > self._max:
            self._full_at_s.popitem(last=False)
        return wait_s

    def try_take(self, key: Hashable, now_s: float) -> bool:
        """Take a token if there is one."""
        if self.wait_s(key, now_s) > 0:
            return False
        self.take(key, now_s)
        return True
