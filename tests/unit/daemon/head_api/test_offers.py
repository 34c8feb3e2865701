"""Offers as people see them, and their refresh."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.daemon.observe.source import Refresh, Source
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.observed import Fresh
from meshd.provider_api import Offer
from tests.head_room import HeadRoom
from tests.unit.daemon.munge_lab import MungeLab as MungeLab
from tests.unit.daemon.small import HandClock
from tests.unit.worlds import GONE_DARK, NOW, OFFER, ago, snapshot


async def test_offers_with_their_age_cooldown_and_the_source_that_fails(room: HeadRoom) -> None:
    room.journal.set_cooldown(Cooldown(CooldownKey.of_offer(OFFER), NOW + timedelta(minutes=5), "sold out"), NOW)
    room.seen = snapshot(offers={"aws": Fresh((OFFER, CHEAP), ago(30)), "gce": GONE_DARK})
    room.reconciler.tick()
    view = await room.head.call(e.OFFERS, s.OffersQuery(gpu="H100"))
    assert [(o.offer, o.price_age_s, o.available, o.capacity_hint) for o in view.offers] == [
        (CHEAP.key, 60.0, True, "High")
    ]
    assert (view.total, view.matching, view.left_out) == (2, 2, {"cooling down": 1})
    assert [(one.name, one.ok, one.reason) for one in view.sources] == [
        ("offers:aws", True, ""), ("offers:gce", False, "does not answer"),
    ]  # fmt: skip
    assert (view.gpus, view.regions) == (["h100-sxm"], ["r1", "r1a", "r1b"])
    everything = await room.head.call(e.OFFERS, s.OffersQuery(all=True))
    assert (everything.offers[1].offer, everything.offers[1].blocked_reason) == (OFFER.key, "sold out")
    none = await room.head.call(e.OFFERS, s.OffersQuery(region=("r9",)))
    assert [(row.field, row.count, row.offer.offer) for row in none.near] == [("region", 2, CHEAP.key)]


async def test_offers_are_refreshed_on_demand(room: HeadRoom) -> None:
    room.next = snapshot(offers={"aws": Fresh((CHEAP,), NOW)})
    assert [o.offer for o in (await room.head.call(e.OFFERS, s.OffersQuery())).offers] == [OFFER.key]
    assert [o.offer for o in (await room.head.call(e.OFFERS, s.OffersQuery(refresh=True))).offers] == [CHEAP.key]


CHEAP = replace(OFFER, zone="r1b", usd_per_hour=1.5, price_as_of=ago(60), capacity_hint="High", available=True)


class SlowCloud:
    """Offers that come when a test lets them."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.reads = 0

    async def offers(self) -> tuple[Offer, ...]:
        self.reads += 1
        await self.go.wait()
        return (OFFER,)


async def test_a_refresh_is_shared_bounded_and_not_repeated_at_once() -> None:
    clock, cloud = HandClock(), SlowCloud()
    source = Source(
        "offers:aws", cloud.offers, clock, timeout_s=60, interval_s=lambda: 300.0, changed=lambda: None
    )  # fmt: skip
    refresh = Refresh([source], clock, timeout_s=0.05)
    await asyncio.gather(refresh(), refresh())
    assert (cloud.reads, isinstance(source.current, Fresh)) == (1, False), "nobody waits longer than is promised"
    cloud.go.set()
    await refresh()
    assert (cloud.reads, isinstance(source.current, Fresh)) == (1, True), "the round went on"
    await refresh()
    assert cloud.reads == 1
    clock.t_s += 10
    await refresh()
    assert cloud.reads == 2
