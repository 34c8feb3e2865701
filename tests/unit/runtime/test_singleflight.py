"""Many who ask are one run."""

from __future__ import annotations

import asyncio

import pytest

from meshd.runtime.singleflight import SingleFlight
from tests.clocks import HandClock


class Costly:
    """Counts its runs; each ends when it is let."""

    def __init__(self) -> None:
        self.runs = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.runs += 1
        run = self.runs
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return run


async def test_all_who_ask_meanwhile_get_one_answer_and_so_do_those_right_after() -> None:
    costly, clock = Costly(), HandClock()
    ask = SingleFlight(costly, 2.0, clock)
    asking = [asyncio.create_task(ask()) for _ in range(50)]
    await asyncio.sleep(0)
    costly.go.set()
    assert await asyncio.gather(*asking) == [1] * 50
    assert await ask() == 1
    clock.t_s += 2.1
    assert await ask() == 2


async def test_one_who_gives_up_does_not_end_the_run_of_the_others() -> None:
    costly = Costly()
    ask = SingleFlight(costly, 2.0, HandClock())
    first, second = asyncio.create_task(ask()), asyncio.create_task(ask())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    costly.go.set()
    assert await second == 1
    assert costly.runs == 1


async def test_an_error_is_everybodys_and_is_not_kept() -> None:
    costly = Costly()
    costly.error = RuntimeError("no")
    costly.go.set()
    ask = SingleFlight(costly, 2.0, HandClock())
    with pytest.raises(RuntimeError):
        await ask()
    costly.error = None
    assert await ask() == 2


async def test_an_answer_of_another_revision_is_not_reused_even_while_it_is_made() -> None:
    costly, revision = Costly(), 1
    ask = SingleFlight(costly, 2.0, HandClock(), lambda: revision)
    before = asyncio.create_task(ask())
    await asyncio.sleep(0)
    revision = 2
    after = asyncio.create_task(ask())
    await asyncio.sleep(0)
    costly.go.set()
    assert await asyncio.gather(before, after) == [1, 2]
    assert await ask() == 2
