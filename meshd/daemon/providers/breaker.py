"""When a provider is left alone after consecutive failures. PURE: no I/O, no clock.

closed --FAILURES_MAX faults in a row--> open --its cool-down is over--> a probe --an answer--> closed
                                          ^                                |
                                          +----- fault, twice as long -----+
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

FAILURES_MAX = 5
COOL_DOWN_S = 10.0
COOL_DOWN_MAX_S = 120.0


class Admission(StrEnum):
    """What becomes of a call."""

    THROUGH = "through"
    PROBE = "probe"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Breaker:
    """How a provider's breaker stands. Times are in seconds of one clock that only grows.

    Attributes:
        failures: faults in a row, up to now.
        reason: the last fault's words.
        cool_down_s: how long it stays open this time; 0 while it is closed.
        opened_at_s: since when this cool-down runs.
        first_opened_at_s: since when it is open, probes or not.
        probing: a probe is under way.
    """

    failures: int = 0
    reason: str = ""
    cool_down_s: float = 0.0
    opened_at_s: float = 0.0
    first_opened_at_s: float = 0.0
    probing: bool = False

    @property
    def is_open(self) -> bool:
        """Calls are refused, but for a probe now and then."""
        return self.cool_down_s > 0

    def retry_after_s(self, now_s: float) -> float:
        """Seconds until a probe may go out; 0 when one may now."""
        return max(0.0, self.opened_at_s + self.cool_down_s - now_s) if self.is_open else 0.0

    def admit(self, now_s: float, *, may_probe: bool) -> tuple[Breaker, Admission]:
        """What becomes of a call now, and the breaker after that.

        Args:
            now_s: the time.
            may_probe: the call changes nothing, so it may be the one that finds out.
        """
        if not self.is_open:
            return self, Admission.THROUGH
        if self.probing or not may_probe or self.retry_after_s(now_s) > 0:
            return self, Admission.REFUSE
        return replace(self, probing=True), Admission.PROBE

    def answered(self) -> Breaker:
        """The cloud answered: all is forgotten."""
        return Breaker()

    def failed(self, reason: str, now_s: float, *, probe: bool) -> Breaker:
        """A call came to nothing.

        Args:
            reason: in the fault's own words.
            now_s: the time.
            probe: this call was the probe. While it is open, other calls that were under way tell nothing new.
        """
        failures = self.failures + 1
        if self.is_open and not probe:
            return replace(self, failures=failures, reason=reason)
        cool_down_s = min(2 * self.cool_down_s, COOL_DOWN_MAX_S)
        if not self.is_open:
            cool_down_s = COOL_DOWN_S if failures >= FAILURES_MAX else 0.0
        first_opened_at_s = self.first_opened_at_s if self.is_open else now_s
        return Breaker(failures, reason, cool_down_s, now_s, first_opened_at_s)

    def untold(self) -> Breaker:
        """A probe ended without telling anything, e.g. because its caller gave up: the next call may be one."""
        return replace(self, probing=False)
