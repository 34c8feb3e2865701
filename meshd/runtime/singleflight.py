"""One run of something costly for all who ask meanwhile, and its answer for those who ask right afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from meshd.runtime.clock import Clock

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs it when it is asked for, but not twice at once, and not again before a while has passed.

    Args:
        run: makes the answer. It may raise: then all who wait for it get the error, and the next one runs it again.
        fresh_s: so long is an answer given to others too, counted from when its run began.
        clock: time.
    """

    def __init__(self, run: Callable[[], Awaitable[T]], fresh_s: float, clock: Clock) -> None:
        self._run = run
        self._fresh_s = fresh_s
        self._clock = clock
        self._task: asyncio.Task[T] | None = None
        self._began_s = float("-inf")

    async def __call__(self) -> T:
        """The answer. One who gives up waiting does not end the run of the others."""
        task = self._task
        old = self._clock.monotonic_s() >= self._began_s + self._fresh_s
        if task is None or (task.done() and (old or task.cancelled() or task.exception() is not None)):
            self._began_s = self._clock.monotonic_s()
            task = self._task = asyncio.ensure_future(self._run())
        return await asyncio.shield(task)
