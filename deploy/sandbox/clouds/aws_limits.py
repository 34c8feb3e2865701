"""EC2's limits on RunInstances: for each region a bucket of calls, and another one of instances.

Sources: EC2 Developer Guide, Request throttling (RunInstances: 5 calls, then 2 per second; 1,000 instances, then 2 per
second).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: datetime


@dataclass(slots=True)
class RunLimits:
    """The buckets of one account.

    Attributes:
        calls, instances: what a full bucket holds.
        calls_per_s, instances_per_s: how fast it fills.
    """

    calls: float = 5.0
    calls_per_s: float = 2.0
    instances: float = 1000.0
    instances_per_s: float = 2.0
    _buckets: dict[tuple[str, str], _Bucket] = field(default_factory=dict)

    def take(self, region: str, instances: int, now: datetime) -> bool:
        """Take one call and its instances out of the buckets; False, and nothing is taken, when one lacks them."""
        call = self._filled("calls", region, self.calls, self.calls_per_s, now)
        new = self._filled("instances", region, self.instances, self.instances_per_s, now)
        if call.tokens < 1 or new.tokens < instances:
            return False
        call.tokens -= 1
        new.tokens -= instances
        return True

    def _filled(self, kind: str, region: str, most: float, per_s: float, now: datetime) -> _Bucket:
        bucket = self._buckets.setdefault((kind, region), _Bucket(most, now))
        bucket.tokens = min(most, bucket.tokens + (now - bucket.at).total_seconds() * per_s)
        bucket.at = now
        return bucket
