"""New machines that their cloud does not know yet: for them, "not found" means "ask again"."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from meshd.errors import NotFound, ProviderError, Transient
from meshd.provider_api import Instance, InstanceId

REMEMBERED = 10_000


class Freshness:
    """Records when machines were first seen.

    Args:
        now: UTC clock.
        fresh_s: how long after its launch a machine may be unknown to its cloud, in seconds.
    """

    def __init__(self, now: Callable[[], datetime], fresh_s: float) -> None:
        self._now = now
        self._fresh = timedelta(seconds=fresh_s)
        self._started_at = now()
        self._first_seen: dict[InstanceId, datetime] = {}

    def see(self, instance_id: InstanceId) -> None:
        """Record that the machine exists. Does nothing for a machine that was seen before."""
        if instance_id not in self._first_seen:
            while len(self._first_seen) >= REMEMBERED:
                del self._first_seen[next(iter(self._first_seen))]
            self._first_seen[instance_id] = self._now()

    def error_for(self, instance: Instance, error: NotFound) -> ProviderError:
        """The error to raise: `error` itself, or Transient while the machine is new.

        A machine of unknown age counts as launched when this object was created, as a crash may have come just before.
        """
        launched_at = instance.launched_at or self._first_seen.get(instance.id) or self._started_at
        if self._now() - launched_at >= self._fresh:
            return error
        return Transient(
            "the cloud does not know this new machine yet",
            provider=error.provider,
            operation=error.operation,
            vendor_text=error.vendor_text,
        )
