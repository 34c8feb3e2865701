"""Queues launches for each cloud: a bounded number in flight, at the rate that the cloud accepts.

A queued launch is not a step in flight: the plan can withdraw it, and its turn uses what was learned meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from meshd.model.machine import Machine, Phase
from meshd.model.plan import Launch
from meshd.runtime.clock import Clock

ORDERED = frozenset({Phase.REQUESTED, Phase.LAUNCHING})


class CallRates:
    """The rates of all clouds, by what each of them counts: the account's region, or the account.

    Args:
        spacing_s: the least seconds between two launches of a provider; 0 for none that is known.
    """

    def __init__(self, spacing_s: Callable[[str], float]) -> None:
        self._spacing_s = spacing_s
        self._rates: dict[tuple[str, str, str], CallRate] = {}

    def of(self, operation: str, provider: str, region: str) -> CallRate:
        """The rate of one kind of call."""
        spacing_s = self._spacing_s(provider) if operation == "launch" else 0.0
        # A spacing that is known holds for the account.
        key = (operation, provider, "" if spacing_s > 0 else region)
        if key not in self._rates:
            self._rates[key] = CallRate(spacing_s)
        return self._rates[key]

    def of_launch(self, machine: Machine) -> CallRate:
        """The rate at which machines of this offer are ordered."""
        return self.of("launch", machine.provider, machine.offer.region)


@dataclass(slots=True)
class _Lane:
    """The orders of one rate."""

    provider: str
    rate: CallRate
    waiting: deque[Launch] = field(default_factory=deque)
    in_flight: int = 0
    timer: asyncio.Task[None] | None = None


class LaunchQueue:
    """Orders in the order in which they came.

    Args:
        rates: how fast each cloud takes them.
        machine: the newest record of a machine; None for one that is not there.
        paused_s: seconds for which nothing is ordered from a provider.
        free: whether no other step for this machine is under way.
        begin: begins an order; `ended` is called when it is done.
        at_once_most: orders under way with a provider.
    """

    def __init__(
        self,
        rates: CallRates,
        clock: Clock,
        *,
        machine: Callable[[str], Machine | None],
        paused_s: Callable[[str], float],
        free: Callable[[str], bool],
        begin: Callable[[Launch], None],
        at_once_most: Callable[[str], int],
    ) -> None:
        self._rates = rates
        self._clock = clock
        self._machine = machine
        self._paused_s = paused_s
        self._free = free
        self._begin = begin
        self._at_once_most = at_once_most
        self._lanes: dict[int, _Lane] = {}
        self._waiting: set[str] = set()
        self._begun: dict[str, _Lane] = {}

    def __len__(self) -> int:
        return sum(len(lane.waiting) for lane in self._lanes.values())

    def add(self, step: Launch) -> None:
        """Begin an order, or have it wait for its turn. One that waits already is not added again."""
        machine = self._machine(step.subject)
        if machine is None or self._waiting.intersection(step.machines):
            return
        rate = self._rates.of_launch(machine)
        lane = self._lanes.setdefault(id(rate), _Lane(machine.provider, rate))
        lane.waiting.append(step)
        self._waiting.update(step.machines)
        self._let_go(lane)

    def ended(self, subject: str) -> None:
        """An order is done, whatever came of it."""
        lane = self._begun.pop(subject, None)
        if lane is None:
            return
        lane.in_flight -= 1
        for other in self._lanes.values():  # those of other regions share the provider's limit
            if other.provider == lane.provider:
                self._let_go(other)

    def close(self) -> None:
        """Begin nothing any more."""
        for lane in self._lanes.values():
            lane.waiting.clear()
            if lane.timer is not None:
                lane.timer.cancel()
        self._waiting.clear()

    def _let_go(self, lane: _Lane) -> None:
        """Begin all orders whose turn it is."""
        while lane.waiting:
            step = self._left(lane.waiting[0])
            if step is None:
                self._drop(lane)  # taken back while it waited, or found: what is next is planned again
                continue
            in_flight = sum(x.in_flight for x in self._lanes.values() if x.provider == lane.provider)
            wait_s = lane.rate.wait_s(self._clock.monotonic_s(), lane.in_flight)
            if wait_s is None or in_flight >= self._at_once_most(lane.provider):
                return  # the next one that ends lets it go
            wait_s = max(wait_s, self._paused_s(lane.provider))
            if wait_s > 0:
                self._later(lane, wait_s)
                return
            self._drop(lane)
            lane.in_flight += 1
            lane.rate.sent(self._clock.monotonic_s())
            self._begun[step.subject] = lane
            self._begin(step)

    def _left(self, step: Launch) -> Launch | None:
        """The order for those of its machines that are still to be ordered; None when there are none."""
        machines = {name: self._machine(name) for name in step.machines}
        if not all(self._free(name) for name in machines):
            return None
        left = [name for name, machine in machines.items() if machine is not None and machine.phase in ORDERED]
        phases = {machine.phase for name, machine in machines.items() if machine is not None and name in left}
        return replace(step, subject=left[0], others=tuple(left[1:])) if len(phases) == 1 else None

    def _drop(self, lane: _Lane) -> None:
        self._waiting.difference_update(lane.waiting.popleft().machines)

    def _later(self, lane: _Lane, wait_s: float) -> None:
        if lane.timer is None or lane.timer.done():
            lane.timer = asyncio.create_task(self._sleep(lane, wait_s), name=f"launch_turn {lane.provider}")

    async def _sleep(self, lane: _Lane, wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        lane.timer = None
        self._let_go(lane)


FIRST_AT_ONCE = 8
"""Calls in flight before any was taken."""

FIRST_PER_S = 1.0
BURST_S = 5.0
"""After the first refusal: what was taken until then, spread over BURST_S, and not less than FIRST_PER_S. The bucket
fills meanwhile, so little is lost by beginning low."""

START_GROWTH = 1.2
"""For each call that is taken, until the rate is measured; less after each attempt at it that was too quick."""

MEASURED_BY = 5
"""The fewest calls between two refusals that count as a measurement."""

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
"""The most missed turns that are made up for at once."""

FORGET_AFTER_S = 600.0
"""After this time without a call the cloud's bucket is full again, and its limit may have changed."""


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
        self._idle_s = 0.0
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
        if math.isfinite(self._next_s):
            self._idle_s += max(0.0, now_s - self._next_s)
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
        if self._known_per_s is not None:
            self.per_s = self._known_per_s
            return
        if self.per_s is None:
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
        self._empty_s, self._taken, self._idle_s = now_s, 0, 0.0

    def _learned(self, elapsed_s: float) -> float:
        """The rate after a refusal; `elapsed_s` is the time since the refusal before it."""
        self._refused_in_row += 1
        if self.per_s is None:
            return max(FIRST_PER_S, self._taken / BURST_S)
        if self._known_per_s is not None:
            # Calls arrive unevenly, or somebody else uses the account as well: the spacing is still the one to keep.
            return self.per_s / 2 if self._refused_in_row > 1 else self.per_s
        # A time in which little was asked for measures what was wanted, and not what the cloud gives.
        if self._taken >= MEASURED_BY and self._idle_s < elapsed_s / 2 < math.inf:
            found = self._taken / elapsed_s * PROBE
            # A bucket that was full for a while lets less be measured than it gives: the truth lies between.
            found = (self.per_s + found) / 2 if self._measured else found
            self._measured = True
            return found
        if self._refused_in_row > 1:
            return self.per_s / 2
        self._growth = 1 + (self._growth - 1) / 2  # it was too quick to be measured
        return self.per_s * (BACK if self._measured else FIRST_BACK)
