"""Orders that wait for their turn with a cloud: so many at once, at the rate that the cloud takes.

An order that waits is no step in flight: it can be taken back, and what was learned meanwhile counts at its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from meshd.daemon.machines.call_rate import CallRate
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
        return len(self._waiting)

    def add(self, step: Launch) -> None:
        """Begin an order, or have it wait for its turn. One that waits already is not added again."""
        machine = self._machine(step.subject)
        if machine is None or step.subject in self._waiting:
            return
        rate = self._rates.of_launch(machine)
        lane = self._lanes.setdefault(id(rate), _Lane(machine.provider, rate))
        lane.waiting.append(step)
        self._waiting.add(step.subject)
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
            step = lane.waiting[0]
            machine = self._machine(step.subject)
            if machine is None or machine.phase not in ORDERED or not self._free(step.subject):
                self._drop(lane)  # taken back while it waited, or found: what is next is planned again
                continue
            active_rotation = sum(x.in_flight for x in self._lanes.values() if x.provider == lane.provider)
            wait_s = lane.rate.wait_s(self._clock.monotonic_s(), lane.in_flight)
            if wait_s is None or active_rotation >= self._at_once_most(lane.provider):
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

    def _drop(self, lane: _Lane) -> None:
        self._waiting.discard(lane.waiting.popleft().subject)

    def _later(self, lane: _Lane, wait_s: float) -> None:
        if lane.timer is None or lane.timer.done():
            lane.timer = asyncio.create_task(self._sleep(lane, wait_s), name=f"launch_turn {lane.provider}")

    async def _sleep(self, lane: _Lane, wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        lane.timer = None
        self._let_go(lane)
