"""Reads of a cloud's data: several at once, to the last page, and cached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from meshd.errors import Transient

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

PAGES_MAX: Final = 1000


async def all_of(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls concurrently and return their values in order.

    When a call fails, wait for the others too, so that none keeps running unnoticed, then raise the first error.
    """
    results = await asyncio.gather(*calls, return_exceptions=True)
    values: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        values.append(result)
    return values


def until_end(pages: Iterable[T], *, provider: str, operation: str, most: int = PAGES_MAX) -> Iterator[T]:
    """Yield the pages of a list, and fail when the list does not end.

    Args:
        pages: the SDK's iterator, which fetches them.
        provider: its name, for errors.
        operation: the call's name, for errors.
        most: the largest number of pages; no account has that many.

    Raises:
        Transient: there are more pages. Without its end the list is incomplete.
    """
    for number, page in enumerate(pages):
        if number >= most:
            raise Transient(f"the list has more than {most} pages", provider=provider, operation=operation)
        yield page


class ReadCache(Generic[K, V]):
    """Values that change seldom, such as instance types. Concurrent callers share one read.

    Args:
        now: UTC clock.
        ttl_s: how long to use a value before reading it again, in seconds.
    """

    def __init__(self, now: Callable[[], datetime], ttl_s: float) -> None:
        self._now = now
        self._ttl = timedelta(seconds=ttl_s)
        self._values: dict[K, tuple[datetime, V]] = {}
        self._reads: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, read: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The value of `key`; calls `read` when it is missing or older than `ttl_s`.

        An error of `read` goes to all callers that wait for it and is not cached. Cancelling one caller does not
        cancel the read of the others.
        """
        cached = self._values.get(key)
        if cached is not None and self._now() - cached[0] < self._ttl:
            return cached[1]
        task = self._reads.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = asyncio.create_task(self._read(key, read), name=f"read {key}")
            self._reads[key] = task
            task.add_done_callback(lambda done: self._finish(key, done))
        return await asyncio.shield(task)

    async def _read(self, key: K, read: Callable[[], Coroutine[Any, Any, V]]) -> V:
        value = await read()
        self._values[key] = (self._now(), value)
        return value

    def _finish(self, key: K, task: asyncio.Task[V]) -> None:
        if self._reads.get(key) is task:
            del self._reads[key]
        if not task.cancelled():
            task.exception()  # mark it as retrieved, or asyncio logs it as never seen; the waiters have it
