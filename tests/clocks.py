"""Time in tests: it moves when a test says so, never by itself."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from meshd.simulate.clock import HandClock as HandClock
from meshd.simulate.clock import SimClock as SimClock


class LoopClock:
    """The time of the event loop that runs: in a test `in_loop_time` none passes but by waiting."""

    def __init__(self, start: datetime = datetime(2026, 3, 1, 12, tzinfo=UTC)) -> None:
        self.start = start

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.monotonic_s())

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


def in_loop_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own that never waits: when all wait for time to pass, it has passed.

    Each wait ends in its turn, however busy the machine is. Not for tests of threads, processes and sockets: what is
    done outside the loop takes time that this loop does not know.
    """

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def whole() -> None:
            await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
            runner.run(whole())

    return run


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.t_s = 0.0
        super().__init__(_Jumper(self))

    def time(self) -> float:
        return self.t_s


class _Jumper(selectors.DefaultSelector):
    def __init__(self, loop: _JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self._loop.t_s += timeout
        return ready
