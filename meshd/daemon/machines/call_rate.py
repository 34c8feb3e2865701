"""How fast a cloud takes calls of one kind, learned from its refusals. PURE: no I/O, no clock.

Clouds limit calls by a token bucket that they do not show (EC2's RunInstances: 5 at once, then 2 per second, for each
account and region). What a caller can see is this: at each refusal the bucket is empty. So the calls that were taken
between two refusals, divided by the time between them, are the cloud's rate.

Until the first refusal only the number of calls in flight is bounded; it grows with each call that is taken, so that a
cloud that limits them refuses few at the start. From then on calls are spaced. The rate starts low and grows until the
next refusal, which measures it; from then on it stays a little above what was measured, to notice when the limit rises.
"""

from __future__ import annotations

FIRST_AT_ONCE = 8
"""Calls in flight before any was taken."""

FIRST_PER_S = 1.0
BURST_S = 5.0
"""After the first refusal: what was taken until then, spread over BURST_S, and not less than FIRST_PER_S. The bucket
fills meanwhile, so little is lost by beginning low."""

START_GROWTH = 1.2
"""For each call that is taken, until the rate is measured; less after each attempt at it that was too quick."""

MEASURED_BY = 5
"""So many calls between two refusals are a measurement."""

PROBE = 1.02
"""Above what was measured: the next refusal comes after some 50 calls, and is a new measurement."""

BACK = 0.97
FIRST_BACK = 0.75
"""What a refusal after fewer than MEASURED_BY calls leaves of a rate that was measured, or was not yet."""

SETTLED_CALLS = 100
GROWTH_CALLS = 20
GROWTH = 1.1
"""After SETTLED_CALLS without a refusal the limit must be higher: the rate grows, again after each GROWTH_CALLS."""

LEAST_PER_S = 1 / 60

MADE_GOOD = 3
"""So many turns that were missed are taken at once."""

FORGET_AFTER_S = 600.0
"""After so long without a call the bucket is full, and maybe another one."""


class CallRate:
    """One bucket. All times are in seconds of a clock that only grows.

    Args:
        spacing_s: the least seconds between two calls that the cloud is known to want; 0 for none.
    """

    def __init__(self, spacing_s: float = 0.0) -> None:
        self._known_per_s = 1 / spacing_s if spacing_s > 0 else None
        self._sent_s = float("-inf")
        self._forget()

    def _forget(self) -> None:
        self.per_s = self._known_per_s
        """Calls per second; None while nothing limits them."""
        self.at_once_most = FIRST_AT_ONCE
        self._measured = False
        self._growth = START_GROWTH
        self._next_s = float("-inf")
        self._empty_s = float("-inf")
        self._taken = 0
        self._refused_in_row = 0

    def wait_s(self, now_s: float, in_flight: int) -> float | None:
        """Seconds until a call may go out; 0 for now, None for when one of those in flight is answered."""
        if in_flight >= self.at_once_most:
            return None
        return max(0.0, self._next_s - now_s)

    def sent(self, now_s: float) -> None:
        """A call goes out."""
        if now_s - self._sent_s > FORGET_AFTER_S:
            self._forget()
        self._sent_s = now_s
        if self.per_s is None:
            return
        gap_s = 1 / self.per_s
        # Turns that were missed on a busy head are made good: their tokens are in the bucket. Never where a spacing is
        # known to be wanted.
        made_good_s = 0.0 if self._known_per_s is not None else MADE_GOOD * gap_s
        self._next_s = max(self._next_s, now_s - made_good_s) + gap_s

    def taken(self, sent_s: float) -> None:
        """The cloud did not refuse a call for its rate that was sent then."""
        self.at_once_most += 1
        if sent_s <= self._empty_s:
            return
        self._taken += 1
        self._refused_in_row = 0
        if self.per_s is None or self._known_per_s is not None:
            return
        beyond = self._taken - SETTLED_CALLS
        if not self._measured:
            self.per_s *= self._growth
        elif beyond >= 0 and beyond % GROWTH_CALLS == 0:
            self.per_s *= GROWTH

    def refused(self, sent_s: float, now_s: float, retry_after_s: float | None = None) -> None:
        """The cloud refused a call for its rate.

        Args:
            sent_s: when the call was sent.
            now_s: when the refusal came.
            retry_after_s: when the cloud wants to be asked again; None when it does not say.
        """
        if sent_s <= self._empty_s:  # of the same burst: it tells nothing new
            return
        self.per_s = max(self._learned(sent_s - self._empty_s), LEAST_PER_S)
        self.at_once_most = max(FIRST_AT_ONCE, self.at_once_most // 2)
        # Twice the spacing, once: one token stays in the bucket, so that the next refusal is far away.
        self._next_s = now_s + max((2 if self._measured else 1) / self.per_s, retry_after_s or 0.0)
        self._empty_s, self._taken = now_s, 0

    def _learned(self, elapsed_s: float) -> float:
        """The rate after a refusal, so long after the one before it."""
        self._refused_in_row += 1
        if self.per_s is None:
            return max(FIRST_PER_S, self._taken / BURST_S)
        if self._taken >= MEASURED_BY and elapsed_s > 0:
            found = self._taken / elapsed_s * PROBE
            # A bucket that was full for a while lets less be measured than it gives: the truth lies between.
            found = (self.per_s + found) / 2 if self._measured else found
            self._measured = True
            return found
        if self._refused_in_row > 1:
            return self.per_s / 2
        self._growth = 1 + (self._growth - 1) / 2  # it was too quick to be measured
        return self.per_s * (BACK if self._measured else FIRST_BACK)
