"""Tells when the head itself was late, or its clock was set. Then silence tells nothing of nodes: it is not theirs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final, TypeVar

import structlog

from meshd.daemon.controller import Controller
from meshd.model.observed import Fresh, Observation
from meshd.runtime.clock import Clock, ClockSteps

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
        self._steps = ClockSteps(clock)
        self._due_s: float | None = None
        self.steady_since: datetime | None = None
        """Since when the head has been in time without a break, by one clock; None while it always was."""

    async def reconcile(self) -> float:
        """Measure."""
        self._measure()
        self._due_s = self._clock.monotonic_s() + BEAT_S
        return BEAT_S

    def _measure(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._due_s is not None and now_s - self._due_s >= LATE_S:
            self.beat(now_s - self._due_s)
            self._due_s = now_s
        if self._steps.last:
            self._steps.taken()
            self.steady_since = self._clock.now()

    def beat(self, late_s: float) -> None:
        """A beat came so much later than it should have."""
        if late_s >= LATE_S:
            log.warning("head_was_late", late_s=round(late_s, 1))
            self.steady_since = self._clock.now()

    def heard(self, seen: Observation[T]) -> Observation[T]:
        """What is heard of nodes, in view since the head was late, or its clock was set, last."""
        self._measure()  # it may have slept, and its next beat come only after this tick
        since, now = self.steady_since, self._clock.now()
        if since is None or not isinstance(seen, Fresh) or (seen.since is not None and since <= seen.since <= now):
            return seen
        return replace(seen, since=since)
