"""The rule that is told for an offer that is not taken, against a plain search through every possible cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.plan.alternatives import OfferRule, Selection, deciding_rule
from meshd.plan.cover import Cover, Need, cheapest, fullest, micros
from meshd.plan.gang import cheapest_in_one, fullest_in_one, group_of
from meshd.provider_api import Offer
from tests.property.catalogues import PLACES, catalogues, every, gpus_of, needs
from tests.tiers import bounded

Objective = tuple[int, int, int, int]
BY_MERIT = (OfferRule.SPOT, OfferRule.PRICE, OfferRule.FEWEST, OfferRule.ORDER)


def objective(chosen: Sequence[Offer], need: Need) -> Objective:
    on_demand = sum(one.gpus or 1 for one in chosen if not one.spot) if need.prefer_spot else 0
    usd = sum(micros(one.usd_per_hour) for one in chosen)
    return on_demand, usd, len(chosen), sum(PLACES[one.provider] for one in chosen)


def best(offers: Sequence[Offer], need: Need, having: Offer | None = None) -> Objective | None:
    """The best cover of the whole need, of those that have a machine of one offer."""
    whole = (chosen for chosen in every(offers, need) if gpus_of(chosen) >= need.units)
    return min((objective(chosen, need) for chosen in whole if having is None or having in chosen), default=None)


def rule_by_search(offer: Offer, offers: Sequence[Offer], need: Need, *, gang: bool) -> OfferRule:
    own = [one for one in offers if not gang or group_of(one) == group_of(offer)]
    with_it = best(own, need, offer)
    if with_it is None:
        for rule, relaxed in (
            (OfferRule.LIMIT, replace(need, usd_per_hour_most=None)),
            (OfferRule.SLOTS, replace(need, machines_most=need.units)),
            (OfferRule.OVERSHOOT, replace(need, overshoot_most=None)),
        ):
            if best(own, relaxed, offer) is not None:
                return rule
        return OfferRule.PLACE if gang and best(offers, need, offer) is not None else OfferRule.LIMITS
    places = {group_of(one) for one in offers} if gang else {None}
    found = [best([o for o in offers if place is None or group_of(o) == place], need) for place in places]
    taken = min(one for one in found if one is not None)
    return next(
        (rule for rule, mine, theirs in zip(BY_MERIT, with_it, taken, strict=True) if mine != theirs), OfferRule.NAME
    )


@settings(max_examples=bounded(100, 3000), deadline=None)
@given(catalogues(), needs(), st.booleans())
def test_the_rule_is_the_one_that_decided(offers: list[Offer], need: Need, gang: bool) -> None:
    whole = cheapest_in_one(offers, need) if gang else cheapest(offers, need)
    cover = whole or (fullest_in_one(offers, need) if gang else fullest(offers, need))
    selection = Selection(offers, need, cover, (), gang)
    for offer in offers:
        rule, words = deciding_rule(offer, selection)
        if offer in cover.offers:
            assert rule is OfferRule.TAKEN
        elif whole is not None or rule is not OfferRule.NEXT:
            assert rule is rule_by_search(offer, offers, need, gang=gang), (offer, words)


def test_a_place_that_is_fixed() -> None:
    here, there = (replace(OFFERS[0], region=region, usd_per_hour=usd) for region, usd in (("r1", 2.0), ("r2", 1.0)))
    need = Need(units=1, machines_most=4, preference=PLACES)
    selection = Selection([here, there], need, Cover((here,), need.cost(here)), (group_of(here),), gang=True)
    assert deciding_rule(there, selection)[0] is OfferRule.PLACE


OFFERS = [Offer("a", "r1", "", "t", "h100", 1, 80, 8, 8192, 2.0)]  # type: ignore[arg-type]
