"""How often clouds are listed: more seldom where a listing is long, and once for a burst of launches."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from meshd.codes import DemandCode
from meshd.config import PoolSettings
from meshd.daemon.observe.source import Source
from meshd.daemon.observe.sources import PollIntervals
from meshd.model.observed import Fresh, Unavailable
from meshd.model.plan import OpenSlots
from meshd.store.journal import Journal
from tests.bench import fleet
from tests.clocks import LoopClock, in_loop_time
from tests.live import live_settings
from tests.unit.worlds import NOW, OFFER


@pytest.mark.parametrize(("count", "interval_s", "spacing_s"), [(0, 15.0, 1.0), (100, 15.0, 1.0), (4000, 20.0, 2.0)])
def test_a_long_listing_is_read_more_seldom(tmp_path: Path, count: int, interval_s: float, spacing_s: float) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal._db.execute("PRAGMA synchronous = OFF")
    for i in range(1, count + 1):
        journal.put(fleet.ready(i), "phase", "ready", fleet.BORN)
    pace = PollIntervals(journal, live_settings())
    assert (pace.cloud_s("aws"), pace.cloud_spacing_s("aws")) == (interval_s, spacing_s)
    assert (pace.cloud_s("lambda"), pace.cloud_spacing_s("lambda")) == (15.0, 1.0)
    journal.close()


@pytest.mark.parametrize(
    ("available", "code", "interval_s"),
    [
        (False, DemandCode.NO_OFFER, 60.0),
        (False, None, 300.0),
        (True, DemandCode.BUDGET, 300.0),
        (None, DemandCode.NO_CAPACITY, 300.0),  # the cloud does not say what is free
    ],
)
def test_closed_slots_have_a_cloud_that_is_sold_out_asked_again_soon(
    tmp_path: Path, available: bool | None, code: DemandCode | None, interval_s: float
) -> None:
    journal = Journal(tmp_path / "journal.db")
    live = live_settings(pools={"h100": PoolSettings(gpu="h100", max_nodes=4, providers=("aws",))})
    pace = PollIntervals(journal, live, lambda: {"h100": OpenSlots(0, code), "of-before": OpenSlots(0, code)})
    seen = Fresh((replace(OFFER, available=available),), NOW)
    assert pace.offers_s("aws", seen) == interval_s
    assert pace.offers_s("lambda", seen) == 300.0
    assert pace.offers_s("aws", Unavailable("unread", NOW)) == 300.0
    journal.close()


@in_loop_time
async def test_a_burst_of_launches_is_a_few_listings() -> None:
    reads = []
    clock = LoopClock()

    async def read() -> int:
        reads.append(clock.monotonic_s())
        await asyncio.sleep(0.2)
        return len(reads)

    listing = Source("x", read, clock, interval_s=lambda: 1e9, changed=lambda: None, spacing_s=lambda: 1.0)
    task = asyncio.create_task(listing.run())
    for _ in range(500):  # in 10 s
        await asyncio.sleep(0.02)
        listing.hurry()
    await asyncio.sleep(5)
    task.cancel()
    assert 8 <= len(reads) <= 11
    assert all(later - earlier >= 1.2 - 1e-9 for earlier, later in itertools.pairwise(reads))
    assert reads[-1] >= 10.0 - 1.2  # what the last launch asked for was read after it


@in_loop_time
async def test_an_interval_that_shrinks_while_it_is_waited_for_counts_at_once() -> None:
    reads, interval_s = [], [1e9]
    clock = LoopClock()

    async def read() -> int:
        reads.append(clock.monotonic_s())
        return len(reads)

    source = Source("x", read, clock, interval_s=lambda: interval_s[0], changed=lambda: None)
    task = asyncio.create_task(source.run())
    await asyncio.sleep(100)
    interval_s[0] = 120.0
    source.reconsider()
    await asyncio.sleep(100)
    task.cancel()
    assert reads == [0.0, 120.0]


@pytest.mark.parametrize(("took_s", "readings"), [(0.0, 101), (0.1, 51), (0.4, 13), (4.0, 3)])
@in_loop_time
async def test_a_source_rests_as_long_as_a_reading_takes(took_s: float, readings: int) -> None:
    began = 0

    async def read() -> int:
        nonlocal began
        began += 1
        await asyncio.sleep(took_s)
        return began

    source = Source("slurm", read, LoopClock(), interval_s=lambda: 0.1, changed=lambda: None)
    task = asyncio.create_task(source.run())
    await asyncio.sleep(10.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert began == readings
