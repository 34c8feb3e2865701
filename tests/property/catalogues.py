"""Catalogues and needs for the cover, and the plain search through every possible one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

from hypothesis import strategies as st

from meshd.plan.cover import Need
from meshd.provider_api import Offer, ProviderName

PLACES = {"a": 0, "b": 1}
PRICES = st.integers(0, 40).map(lambda quarter: quarter / 4)


def offer(index: int, gpus: int, usd: float, spot: bool, provider: str, region: str) -> Offer:
    return Offer(ProviderName(provider), region, "", f"t{index}", "h100" if gpus else "", gpus, 80, 8, 8192, usd, spot)


@st.composite
def catalogues(draw: st.DrawFn) -> list[Offer]:
    sizes = draw(st.sampled_from([(0,), (1,), (1, 2, 4, 8), (1, 2, 3, 4, 5, 6), (3, 5), (8,), (2, 7)]))
    rows = st.tuples(
        st.sampled_from(sizes), PRICES, st.booleans(), st.sampled_from(list(PLACES)), st.sampled_from(["r1", "r2"])
    )
    return [offer(index, *row) for index, row in enumerate(draw(st.lists(rows, max_size=4)))]


@st.composite
def needs(draw: st.DrawFn) -> Need:
    return Need(
        units=draw(st.integers(1, 9)),
        machines_most=draw(st.integers(0, 4)),
        overshoot_most=draw(st.none() | st.integers(0, 4)),
        usd_per_hour_most=draw(st.none() | PRICES.map(lambda usd: usd * 2)),
        prefer_spot=draw(st.booleans()),
        preference=PLACES,
    )


def every(offers: Sequence[Offer], need: Need) -> Iterator[tuple[Offer, ...]]:
    """Every choice of machines that fits the slots, the money and the overshoot."""
    for count in range(need.machines_most + 1):
        for chosen in combinations_with_replacement(offers, count):
            gpus = sum(one.gpus or 1 for one in chosen)
            dear = need.usd_per_hour_most is not None and sum(o.usd_per_hour for o in chosen) > need.usd_per_hour_most
            if not dear and (need.overshoot_most is None or gpus <= need.units + need.overshoot_most):
                yield chosen


def gpus_of(chosen: Sequence[Offer]) -> int:
    return sum(one.gpus or 1 for one in chosen)
