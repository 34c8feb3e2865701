"""What a cloud tells that changes by the week: read once for all who ask at the same time, and kept for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Values by key.

    Args:
        now: UTC clock.
        ttl_s: how long a value is used before it is read again, in seconds.
    """

    def __init__(self, now: Callable[[], datetime], ttl_s: float) -> None:
        self._now = now
        self._ttl = timedelta(seconds=ttl_s)
        self._kept: dict[K, tuple[datetime, V]] = {}
        self._reads: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, read: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The value, read with `read` when it is missing or older than `ttl_s`.

        Equal questions at the same time share one read, and its error too: an error is not kept. A caller that is
        cancelled does not end the read of the others.
        """
        kept = self._kept.get(key)
        if kept is not None and self._now() - kept[0] < self._ttl:
            return kept[1]
        task = self._reads.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = asyncio.create_task(self._read(key, read), name=f"read {key}")
            self._reads[key] = task
            task.add_done_callback(lambda done: self._finish(key, done))
        return await asyncio.shield(task)

    async def _read(self, key: K, read: Callable[[], Coroutine[Any, Any, V]]) -> V:
        value = await read()
        self._kept[key] = (self._now(), value)
        return value

    def _finish(self, key: K, task: asyncio.Task[V]) -> None:
        if self._reads.get(key) is task:
            del self._reads[key]
        if not task.cancelled():
            task.exception()  # whoever still waits gets it; asyncio must not report it as never seen
