"""Waiting for what other processes do: until it is there, or a failure that says what was seen last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def until(
    look: Callable[[], Awaitable[T]],
    good: Callable[[T], bool],
    what: str,
    within_s: float = 60.0,
    every_s: float = 0.05,
) -> T:
    """Look again and again until what is seen is good; that.

    Args:
        look: asks.
        good: judges what was seen.
        what: what is waited for, for people.
        within_s: many times what it takes, for a machine that is busy with other things; a success is not later for it.
        every_s: between two looks.

    Raises:
        AssertionError: it did not come in time; with what was seen last.
    """
    end = time.monotonic() + within_s
    while not good(seen := await look()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {within_s:g} s: {what}; last seen: {seen!r}")
        await asyncio.sleep(every_s)
    return seen
