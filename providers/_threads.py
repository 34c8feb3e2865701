"""Threads for calls of synchronous SDKs, with a deadline for each call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from meshd.errors import Transient, Uncertain

T = TypeVar("T")


class Workers:
    """Threads for one provider.

    A thread cannot be stopped. When a call misses its deadline, its thread stays busy until the SDK's own timeout, and
    the call's effect is unknown.
    """

    def __init__(self, provider: str, threads: int) -> None:
        self._provider = provider
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"meshd-{provider}")

    async def call(self, function: Callable[[], T], *, operation: str, changes: bool, timeout_s: float) -> T:
        """Run `function` in a thread; return its value or raise its exception.

        Args:
            function: makes the call.
            operation: the call's name, for errors.
            changes: whether the call may make or end a machine.
            timeout_s: seconds, including the wait for a free thread.

        Raises:
            Transient: the deadline passed, and the call only reads or had not started.
            Uncertain: the deadline passed during a call that changes something.
        """
        job = self._pool.submit(function)
        waiter = asyncio.wrap_future(job)
        done, _ = await asyncio.wait({waiter}, timeout=timeout_s)
        if done:
            return waiter.result()
        not_started = job.cancel()
        waiter.cancel()
        text = f"no answer within {timeout_s:g} s"
        if not_started:
            raise Transient(f"{text}: all threads are busy", provider=self._provider, operation=operation)
        if changes:
            raise Uncertain(text, provider=self._provider, operation=operation)
        raise Transient(text, provider=self._provider, operation=operation)

    async def aclose(self) -> None:
        """Accept no more calls and drop those that have not started. Does not wait for running calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)
