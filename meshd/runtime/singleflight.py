"""Single flight: concurrent callers share one run of a costly function, and its answer stays valid for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from meshd.runtime.clock import Clock

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Calls a function at most once at a time, and caches its answer.

    Args:
        run: makes the answer. When it raises, all waiting callers get the error, and the next caller runs it again.
        fresh_s: how long an answer is reused, from the start of its run.
        clock: time.
        revision: what the answer depends on; one that began at another revision is not reused.
    """

    def __init__(
        self,
        run: Callable[[], Awaitable[T]],
        fresh_s: float,
        clock: Clock,
        revision: Callable[[], object] = lambda: None,
    ) -> None:
        self._run = run
        self._fresh_s = fresh_s
        self._clock = clock
        self._revision = revision
        self._task: asyncio.Task[T] | None = None
        self._began_s = float("-inf")
        self._began_at: object = None

    async def __call__(self) -> T:
        """The answer. A caller that is cancelled does not cancel the run for the others."""
        task, revision = self._task, self._revision()
        old = self._clock.monotonic_s() >= self._began_s + self._fresh_s
        if (
            task is None
            or revision != self._began_at
            or (task.done() and (old or task.cancelled() or task.exception() is not None))
        ):
            self._began_s, self._began_at = self._clock.monotonic_s(), revision
            task = self._task = asyncio.ensure_future(self._run())
        return await asyncio.shield(task)
