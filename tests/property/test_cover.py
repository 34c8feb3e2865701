"""The cover against a plain search through every possible one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.plan.cover import Need, cheapest, fullest
from meshd.plan.gang import cheapest_in_one, fullest_in_one
from meshd.provider_api import Offer
from tests.property.catalogues import PLACES, catalogues, every, gpus_of, needs, offer
from tests.tiers import bounded


def objective(chosen: Sequence[Offer], need: Need) -> tuple[float, ...]:
    on_demand = sum(one.gpus or 1 for one in chosen if not one.spot) if need.prefer_spot else 0
    return on_demand, sum(o.usd_per_hour for o in chosen), len(chosen), sum(PLACES[o.provider] for o in chosen)


@settings(max_examples=bounded(400, 30000))
@given(catalogues(), needs())
def test_nothing_is_better(offers: list[Offer], need: Need) -> None:
    possible = [chosen for chosen in every(offers, need) if gpus_of(chosen) >= need.units]
    found = cheapest(offers, need)
    assert (found is not None) == bool(possible)
    if found is not None:
        assert found.offers in {
            tuple(sorted(c, key=found.offers.index)) for c in possible if set(c) == set(found.offers)
        }
        assert objective(found.offers, need) == min(objective(chosen, need) for chosen in possible)
        assert found.usd_per_hour == sum(o.usd_per_hour for o in found.offers)


@settings(max_examples=bounded(600, 12000))
@given(catalogues(), needs())
def test_when_it_cannot_be_whole_nothing_has_more_or_is_better(offers: list[Offer], need: Need) -> None:
    less = [chosen for chosen in every(offers, need) if gpus_of(chosen) < need.units]
    most = max(gpus_of(chosen) for chosen in less)
    found = fullest(offers, need)
    assert found.units == most
    assert objective(found.offers, need) == min(objective(chosen, need) for chosen in less if gpus_of(chosen) == most)


@settings(max_examples=bounded(100, 4000))
@given(catalogues(), needs(), st.randoms())
def test_the_order_of_the_offers_does_not_matter(offers: list[Offer], need: Need, random: object) -> None:
    shuffled = list(offers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert cheapest(shuffled, need) == cheapest(offers, need)
    assert fullest(shuffled, need) == fullest(offers, need)


# -- one place --------------------------------------------------------------------------------------------------------


def place_of(one: Offer) -> tuple[str, str]:
    return one.provider, one.region


@settings(max_examples=bounded(600, 12000))
@given(catalogues(), needs())
def test_in_one_place_nothing_is_better(offers: list[Offer], need: Need) -> None:
    together = [c for c in every(offers, need) if len({place_of(one) for one in c}) <= 1]
    possible = [chosen for chosen in together if gpus_of(chosen) >= need.units]
    found = cheapest_in_one(offers, need)
    assert (found is not None) == bool(possible)
    if found is not None:
        assert len({place_of(one) for one in found.offers}) == 1
        assert objective(found.offers, need) == min(objective(chosen, need) for chosen in possible)
    less = [chosen for chosen in together if gpus_of(chosen) < need.units]
    part = fullest_in_one(offers, need)
    assert part.units == max(gpus_of(chosen) for chosen in less)
    assert len({place_of(one) for one in part.offers}) <= 1


@settings(max_examples=bounded(300, 6000))
@given(catalogues(), needs())
def test_a_place_where_machines_are_is_taken_only_when_no_other_is_cheaper(offers: list[Offer], need: Need) -> None:
    free, here = cheapest_in_one(offers, need), {("b", "r2")}
    near = cheapest_in_one(offers, need, here)
    assert (free is None) == (near is None)
    if free is not None and near is not None:
        assert near.cost[:2] == free.cost[:2]
        there = cheapest_in_one([o for o in offers if place_of(o) in here], need)
        if there is not None and there.cost[:2] == free.cost[:2]:
            assert place_of(near.offers[0]) in here


# -- large needs ------------------------------------------------------------------------------------------------------


@settings(max_examples=bounded(60, 1000))
@given(catalogues(), st.integers(100, 700), st.integers(0, 4))
def test_large_needs_are_covered_as_cheaply_as_by_adding_machine_after_machine(
    offers: list[Offer], gpus: int, more: int
) -> None:
    """Without a limit of slots the cheapest for exactly n GPUs is the cheapest for fewer and one machine more."""
    need = Need(gpus, 10_000, more)
    cheap: list[float] = [0.0]
    for n in range(1, gpus + more + 1):
        sizes = [(o.gpus or 1, o.usd_per_hour) for o in offers]
        cheap.append(min((cheap[n - size] + usd for size, usd in sizes if size <= n), default=float("inf")))
    best = min(cheap[gpus:])
    found = cheapest(offers, need)
    assert (found is None) == (best == float("inf"))
    assert found is None or found.usd_per_hour == best


def test_ten_thousand_gpus_are_no_work() -> None:
    eight, one = offer(1, 8, 16.0, False, "a", "r1"), offer(2, 1, 2.5, False, "a", "r1")
    found = cheapest([eight, one], Need(10_003, 10_000))
    assert found is not None
    assert [o.gpus for o in found.offers] == [8] * 1250 + [1] * 3
    scarce = cheapest([eight, replace(one, usd_per_hour=1.0)], Need(10_000, 2000))
    assert scarce is not None
    assert [o.gpus for o in scarce.offers] == [8] * 1143 + [1] * 856, "as many small ones as the slots leave room for"
    assert fullest([eight], Need(100_000, 5000, usd_per_hour_most=1601.0)).units == 800
