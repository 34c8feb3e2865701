"""New machines that their cloud does not know yet: "not found" about them means "ask again"."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from meshd.errors import NotFound, ProviderError, Transient
from meshd.provider_api import Instance, InstanceId

REMEMBERED = 10_000


class Freshness:
    """Remembers when machines were first seen.

    Args:
        now: UTC clock.
        fresh_s: for how long after its birth a machine's absence proves nothing.
    """

    def __init__(self, now: Callable[[], datetime], fresh_s: float) -> None:
        self._now = now
        self._fresh = timedelta(seconds=fresh_s)
        self._started_at = now()
        self._first_seen: dict[InstanceId, datetime] = {}

    def see(self, instance_id: InstanceId) -> None:
        """Note that the machine was there; of no effect on one already noted."""
        if instance_id not in self._first_seen:
            while len(self._first_seen) >= REMEMBERED:
                del self._first_seen[next(iter(self._first_seen))]
            self._first_seen[instance_id] = self._now()

    def judge(self, instance: Instance, error: NotFound) -> ProviderError:
        """What to raise: `error` itself, or Transient while the machine is fresh.

        A machine of unknown age counts as born when this was made: a crash may lie just behind it.
        """
        born_at = instance.launched_at or self._first_seen.get(instance.id) or self._started_at
        if self._now() - born_at >= self._fresh:
            return error
        return Transient(
            "the cloud does not know this new machine yet",
            provider=error.provider,
            operation=error.operation,
            vendor_text=error.vendor_text,
        )
