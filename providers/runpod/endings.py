"""Pods whose end RunPod has accepted. RunPod has no word for "ending", and forgets a pod once it is deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from meshd.provider_api import Instance, InstanceId, InstanceState

REMEMBERED_FOR = timedelta(hours=1)


class Endings:
    """Remembers for an hour which deletions were accepted.

    Args:
        now: UTC clock.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._accepted_at: dict[InstanceId, datetime] = {}

    def accept(self, instance_id: InstanceId) -> None:
        """Note that the deletion was accepted now."""
        now = self._now()
        kept = {known: at for known, at in self._accepted_at.items() if now - at < REMEMBERED_FOR}
        self._accepted_at = {**kept, instance_id: now}

    def accepted(self, instance_id: InstanceId) -> bool:
        """Whether a deletion was accepted within the last hour."""
        at = self._accepted_at.get(instance_id)
        return at is not None and self._now() - at < REMEMBERED_FOR

    def look(self, instance: Instance) -> Instance:
        """The instance as it stands: one that is there although its deletion was accepted is ending."""
        if instance.state is InstanceState.GONE or not self.accepted(instance.id):
            return instance
        return replace(instance, state=InstanceState.TERMINATING, reason="its deletion is accepted")
