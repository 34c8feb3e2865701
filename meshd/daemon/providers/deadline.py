"""A deadline for each call to a cloud."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from meshd.daemon.providers.guarded import Operation
from meshd.errors import Transient, Uncertain

T = TypeVar("T")


class Deadline:
    """Gives a call up when its time is over.

    A launch may have had its effect by then: it is Uncertain. Every other call can be made again: it is Transient.

    Args:
        provider: its name in errors.
        timeout_s: seconds for a call of this operation, asked anew for each.
    """

    def __init__(self, provider: str, timeout_s: Callable[[Operation], float]) -> None:
        self._provider = provider
        self._timeout_s = timeout_s

    async def call(self, operation: Operation, ask: Callable[[], Awaitable[T]]) -> T:
        """See Guard."""
        timeout_s = self._timeout_s(operation)
        try:
            async with asyncio.timeout(timeout_s):
                return await ask()
        except TimeoutError as error:
            kind = Uncertain if operation == "launch" else Transient
            raise kind(f"no answer within {timeout_s:g} s", provider=self._provider, operation=operation) from error
