"""Offers for people: which are shown, in which order, and what is said about the rest."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.plan.offers import COOLING, NO_CAPACITY, OfferFilter, find
from meshd.plan.placement import cooldown_of
from meshd.provider_api import Offer, ProviderName
from tests.unit.worlds import NOW, OFFER

LATER = NOW + timedelta(minutes=5)


def offer(name: str, usd: float, **changes: object) -> Offer:
    return replace(OFFER, instance_type=name, usd_per_hour=usd, **changes)  # type: ignore[arg-type]


def keys(found: tuple[tuple[Offer, ...], ...]) -> list[str]:
    return [o.instance_type for row in found for o in row]


OFFERS = [
    offer("cpu", 0.1, gpu="", gpus=0, gpu_memory_gib=0),
    offer("eight", 16.0, gpus=8),
    offer("one", 2.5),
    offer("full", 1.0, available=False),
    offer("cool", 1.5, zone="r1b"),
    offer("pcie", 1.9, gpu="h100-pcie", spot=True, provider=ProviderName("gce"), region="r2", zone=""),
    offer("arm", 3.0, gpu="gh200", arch="arm64", gpu_memory_gib=96),
]
COOLDOWNS = {CooldownKey("offer:aws/r1b/cool"): Cooldown(CooldownKey("offer:aws/r1b/cool"), LATER, "sold out")}


def test_cheapest_gpu_first_and_what_cannot_be_rented_last_or_not_at_all() -> None:
    found = find(OFFERS, OfferFilter(), COOLDOWNS, NOW, limit=9)
    assert keys(found.shown) == ["pcie", "eight", "one", "arm", "cpu"]
    assert (found.matching, found.left_out) == (7, {COOLING: 1, NO_CAPACITY: 1})
    everything = find(OFFERS, OfferFilter(), COOLDOWNS, NOW, limit=9, everything=True)
    assert keys(everything.shown) == ["pcie", "eight", "one", "arm", "cpu", "full", "cool"]
    assert everything.left_out == {}
    grouped = find(OFFERS, OfferFilter(), COOLDOWNS, NOW, limit=9, by_provider=True)
    assert keys(grouped.shown) == ["eight", "one", "arm", "cpu", "pcie"]


def test_zones_that_differ_in_nothing_else_are_one_row() -> None:
    zones = [offer("one", 2.5, zone=zone) for zone in ("r1a", "r1b", "r1c")]
    others = [offer("one", 2.6, zone="r1d"), offer("one", 2.5, region="r2", zone="r2a"), offer("one", 1.0, spot=True)]
    cooldowns = {CooldownKey("offer:aws/r1c/one"): Cooldown(CooldownKey("offer:aws/r1c/one"), LATER, "sold out")}
    found = find([*others, *zones], OfferFilter(), cooldowns, NOW, limit=3, everything=True, fold=True)
    assert [[o.zone for o in row] for row in found.shown] == [[OFFER.zone], ["r1a", "r1b"], ["r2a"]]
    assert found.matching == 6
    rest = find([*others, *zones], OfferFilter(), cooldowns, NOW, limit=9, everything=True, fold=True).shown[3:]
    assert [[o.zone for o in row] for row in rest] == [["r1d"], ["r1c"]]
    assert len(find(zones, OfferFilter(), {}, NOW, limit=9).shown) == 3


def test_each_field_narrows() -> None:
    def names(**fields: object) -> set[str]:
        return set(keys(find(OFFERS, OfferFilter(**fields), {}, NOW, limit=9, everything=True).shown))  # type: ignore[arg-type]

    assert names(gpu="h100") == {"eight", "one", "full", "cool", "pcie"}
    assert names(gpu="h100-pcie") == {"pcie"} == names(providers=("gce",)) == names(spot=True) == names(regions=("r2",))
    assert names(gpus_per_node=8) == {"eight"}
    assert names(gpus_per_node=0) == {"cpu"}
    assert names(regions=("r1b", "r2")) == {"cool", "pcie"}, "a region or a zone"
    assert "pcie" not in names(spot=False)
    assert names(max_usd_per_gpu_hour=1.5) == {"cpu", "full", "cool"}
    assert names(gpu_memory_min_gib=90) == {"arm"} == names(arch="arm64")


def test_when_nothing_matches_the_nearest_are_told() -> None:
    offer_filter = OfferFilter(gpu="h100", gpus_per_node=8, max_usd_per_gpu_hour=1.6)
    found = find(OFFERS, offer_filter, {}, NOW, limit=9)
    assert found.shown == ()
    assert {name: (near.count, near.nearest.instance_type) for name, near in found.near.items()} == {
        "max_usd_per_gpu_hour": (1, "eight"),
        "gpus_per_node": (2, "full"),
    }


def test_where_all_have_too_little_memory_the_most_is_told() -> None:
    offers = [
        offer("t4", 0.1, gpu_memory_gib=16),
        offer("l4", 0.8, gpu_memory_gib=24),
        offer("g", 0.6, gpu_memory_gib=24),
    ]
    near = find(offers, OfferFilter(gpu_memory_min_gib=40), {}, NOW, limit=9).near["gpu_memory_min_gib"]
    assert (near.count, near.nearest.instance_type) == (3, "g")
    found = find(offers, OfferFilter(gpu_memory_min_gib=24), {}, NOW, limit=9)
    assert keys(found.shown) == ["g", "l4"]


def test_a_cool_down_that_is_over_is_none() -> None:
    assert cooldown_of(OFFERS[4], COOLDOWNS, NOW) is not None
    assert cooldown_of(OFFERS[4], COOLDOWNS, LATER) is None
    assert (
        cooldown_of(
            OFFERS[2], {CooldownKey("provider:aws"): Cooldown(CooldownKey("provider:aws"), LATER, "slow down")}, NOW
        )
        is not None
    )


offers = st.builds(
    offer,
    st.sampled_from("abcdefgh"),
    st.floats(0.1, 50),
    gpu=st.sampled_from(["h100-sxm", "h100-pcie", "l4"]),
    gpus=st.sampled_from([1, 4, 8]),
    provider=st.sampled_from([ProviderName("aws"), ProviderName("gce")]),
    zone=st.sampled_from(["r1a", "r1b"]),
    available=st.sampled_from([True, False, None]),
)
filters = st.builds(
    OfferFilter,
    gpu=st.sampled_from(["", "h100", "h100-sxm"]),
    gpus_per_node=st.sampled_from([None, 8]),
    max_usd_per_gpu_hour=st.sampled_from([None, 5.0]),
)


@given(
    st.lists(offers, max_size=20, unique_by=lambda o: o.key), filters, st.integers(1, 5), st.booleans(), st.booleans()
)
def test_nothing_is_lost_and_the_order_of_reading_does_not_matter(
    several: list[Offer], offer_filter: OfferFilter, limit: int, everything: bool, fold: bool
) -> None:
    found = find(several, offer_filter, {}, NOW, limit=limit, everything=everything, fold=fold)
    whole = find(several, offer_filter, {}, NOW, limit=100, everything=everything, fold=fold)
    shown = [o for row in whole.shown for o in row]
    assert found.shown == whole.shown[:limit]
    assert len(shown) + sum(whole.left_out.values()) == whole.matching
    assert all(not offer_filter.misses(o) for o in shown)
    assert bool(whole.near) <= (whole.matching == 0)
    prices = [(o.available is False, o.usd_per_gpu_hour) for o in shown]
    assert prices == sorted(prices)
    assert find(several[::-1], offer_filter, {}, NOW, limit=limit, everything=everything, fold=fold) == found


def test_five_thousand_offers_take_no_time() -> None:
    many = [offer(f"t{i}", 1 + i % 97, zone=f"z{i % 40}", gpus=1 + i % 8) for i in range(5000)]
    began = time.process_time()
    found = find(many, OfferFilter(gpu="h100", max_usd_per_gpu_hour=20), COOLDOWNS, NOW, limit=40)
    assert len(found.shown) == 40
    assert time.process_time() - began < 1.0  # some 40 ms of CPU
