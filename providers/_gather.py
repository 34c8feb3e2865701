"""Several calls at once, all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls at the same time and return their values in order.

    When some fail, waits for the others as well, so that none goes on unseen, and then raises the first one's error.
    """
    results = await asyncio.gather(*calls, return_exceptions=True)
    values: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        values.append(result)
    return values
