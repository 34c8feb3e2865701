"""Tells when the head itself was late. Such a head hears nobody, and then silence tells nothing of nodes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final, TypeVar

import structlog

from meshd.daemon.controller import Controller
from meshd.model.observed import Fresh, Observation
from meshd.runtime.clock import Clock

T = TypeVar("T")

BEAT_S: Final = 1.0
LATE_S: Final = 3.0
"""So much later than asked for, and heartbeats of nodes wait as long."""

log = structlog.get_logger(__name__)


class LoopLag(Controller):
    """Measures once a second how late the event loop is.

    Args:
        clock: time.
    """

    name = "loop_lag"

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._due_s: float | None = None
        self.steady_since: datetime | None = None
        """Since when the head has been in time without a break; None while it always was."""

    async def reconcile(self) -> float:
        """Measure."""
        now_s = self._clock.monotonic_s()
        if self._due_s is not None:
            self.beat(now_s - self._due_s)
        self._due_s = now_s + BEAT_S
        return BEAT_S

    def beat(self, late_s: float) -> None:
        """A beat came so much later than it should have."""
        if late_s >= LATE_S:
            log.warning("head_was_late", late_s=round(late_s, 1))
            self.steady_since = self._clock.now()

    def heard(self, seen: Observation[T]) -> Observation[T]:
        """What is heard of nodes, in view since the head was late last."""
        since = self.steady_since
        if since is None or not isinstance(seen, Fresh) or (seen.since is not None and seen.since >= since):
            return seen
        return replace(seen, since=since)
