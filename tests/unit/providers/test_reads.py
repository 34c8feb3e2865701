"""The cache of reads: one read serves all who ask."""

from __future__ import annotations

import asyncio

import pytest

from meshd.errors import Transient
from providers._reads import ReadCache
from tests.clocks import SimClock


class Cloud:
    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.answer = asyncio.Event()

    async def __call__(self) -> int:
        self.asked += 1
        await self.answer.wait()
        if self.error is not None:
            raise self.error
        return self.asked


async def test_concurrent_callers_share_one_read() -> None:
    cloud, clock = Cloud(), SimClock()
    kept: ReadCache[str, int] = ReadCache(clock.now, 60)
    asking = [asyncio.create_task(kept.get("image", cloud)) for _ in range(64)]
    await asyncio.sleep(0)
    cloud.answer.set()
    assert await asyncio.gather(*asking) == [1] * 64
    assert await kept.get("image", cloud) == 1
    assert await kept.get("another", cloud) == 2


async def test_a_value_is_read_again_after_its_time() -> None:
    cloud, clock = Cloud(), SimClock()
    cloud.answer.set()
    kept: ReadCache[str, int] = ReadCache(clock.now, 60)
    assert await kept.get("image", cloud) == 1
    clock.t_s = 59.9
    assert await kept.get("image", cloud) == 1
    clock.t_s = 60
    assert await kept.get("image", cloud) == 2


async def test_an_error_reaches_all_callers_and_is_not_cached() -> None:
    cloud, clock = Cloud(), SimClock()
    cloud.error = Transient("busy", provider="aws", operation="launch")
    cloud.answer.set()
    kept: ReadCache[str, int] = ReadCache(clock.now, 60)
    found = await asyncio.gather(*(kept.get("image", cloud) for _ in range(8)), return_exceptions=True)
    assert (cloud.asked, [type(one) for one in found]) == (1, [Transient] * 8)
    cloud.error = None
    assert await kept.get("image", cloud) == 2


async def test_a_cancelled_caller_does_not_end_the_read_of_the_others() -> None:
    cloud, clock = Cloud(), SimClock()
    kept: ReadCache[str, int] = ReadCache(clock.now, 60)
    first, second = (asyncio.create_task(kept.get("image", cloud)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    cloud.answer.set()
    assert (await second, cloud.asked) == (1, 1)
