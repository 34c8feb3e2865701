"""Calls of synchronous SDKs: a bounded set of threads, and a deadline on every call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from meshd.errors import Transient, Uncertain

T = TypeVar("T")


class Workers:
    """Threads for one provider.

    A thread cannot be stopped: one whose call ran past its deadline stays busy until the SDK's own time-out, and what
    it did is unknown. Hence the kinds of error below.
    """

    def __init__(self, provider: str, threads: int) -> None:
        self._provider = provider
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"meshd-{provider}")

    async def call(self, function: Callable[[], T], *, operation: str, changes: bool, timeout_s: float) -> T:
        """Run `function` in a thread and return its value; what it raises is raised here.

        Args:
            function: the call, with nothing left to choose.
            operation: its name in errors.
            changes: it may make or end a machine.
            timeout_s: seconds, waiting for a free thread included.

        Raises:
            Transient: the deadline passed and nothing was changed: a read, or a call that had not begun.
            Uncertain: the deadline passed in the midst of a call that changes things.
        """
        job = self._pool.submit(function)
        waiter = asyncio.wrap_future(job)
        done, _ = await asyncio.wait({waiter}, timeout=timeout_s)
        if done:
            return waiter.result()
        never_began = job.cancel()
        waiter.cancel()
        text = f"no answer within {timeout_s:g} s"
        if never_began:
            raise Transient(f"{text}: all threads are busy", provider=self._provider, operation=operation)
        if changes:
            raise Uncertain(text, provider=self._provider, operation=operation)
        raise Transient(text, provider=self._provider, operation=operation)

    async def aclose(self) -> None:
        """Take no more calls; drop those that have not begun. Does not wait for those under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)
