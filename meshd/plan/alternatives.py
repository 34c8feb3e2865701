"""The offers that a pool considered, each with the rule that decided about it. PURE.

To explain an offer that was not taken, the cover is solved again with one machine of it. If no such cover exists, the
limit that forbids it decided; otherwise the first part of the objective in which that cover is worse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import islice

from meshd import gpus
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Pool, Target
from meshd.plan.budget import Used
from meshd.plan.cover import Cost, Cover, Need, cheapest, units
from meshd.plan.gang import Group, cheapest_in_one, group_of, place
from meshd.plan.placement import Miss, cooldown_of, misses, nearness, ranked
from meshd.provider_api import Offer


class OfferRule(StrEnum):
    """What decided about an offer."""

    TAKEN = "taken"
    NEXT = "next"
    """Nothing is against it, and other offers come first."""
    SPOT = "spot_preferred"
    PRICE = "price"
    """The chosen machines cost less in all."""
    FEWEST = "fewest_machines"
    ORDER = "provider_order"
    NAME = "name"
    """An equal offer comes first by name."""
    PLACE = "place"
    """All machines of the target are in one place, and the offer is in another."""
    LIMIT = "limit_in_all"
    BUDGET = "budget"
    SLOTS = "slots"
    OVERSHOOT = "overshoot"
    LIMITS = "limits_together"
    COOLING = "cooling_down"
    MISFIT = "misfit"
    """The pool or the target excludes it."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a pool chooses from, and the choice.

    Attributes:
        fit: the usable offers.
        need: what is to be covered, and the limits.
        cover: the choice: it covers the whole need, or as much of it as possible.
        here: the places where the pool's machines are.
        gang: whether all machines must be in one place.
        budget: the limit of the budget that allows less than those of the pool and the target; None when none does.
    """

    fit: Sequence[Offer]
    need: Need
    cover: Cover
    here: tuple[Group, ...] = ()
    gang: bool = False
    budget: Used | None = None

    def in_place(self) -> Sequence[Offer]:
        """The usable offers in the gang's place, if it is in one place; otherwise all."""
        return [offer for offer in self.fit if group_of(offer) in self.here] if len(self.here) == 1 else self.fit

    def best(self, offers: Sequence[Offer], need: Need) -> Cover | None:
        """The best cover of a whole need out of these offers, in one place for a gang; None when there is none."""
        return cheapest_in_one(offers, need, self.here) if self.gang else cheapest(offers, need)


_BY_OBJECTIVE = (OfferRule.SPOT, OfferRule.PRICE, OfferRule.FEWEST, OfferRule.ORDER)
"""In the order of `cover.Cost`."""


def deciding_rule(offer: Offer, selection: Selection) -> tuple[OfferRule, str]:
    """The rule that kept a usable offer out of the cover, and its words.

    For PRICE the words are "" when the offer also costs more for each GPU, since the list shows that already.
    """
    taken = {one.key for one in selection.cover.offers}
    if offer.key in taken:
        return OfferRule.TAKEN, ""
    if selection.gang and len(selection.here) == 1 and group_of(offer) not in selection.here:
        where = place(selection.here[0])
        return OfferRule.PLACE, f"in {place(group_of(offer))}: the target's machines are in {where} (--spread lifts it)"
    with_it = with_one(offer, selection, selection.need)
    if with_it is None:
        return _limit(offer, selection)
    if selection.cover.units < selection.need.units:
        return OfferRule.NEXT, ""
    return _by_objective(offer, selection, with_it)


def with_one(offer: Offer, selection: Selection, need: Need) -> Cost | None:
    """The cost of the best cover of the whole need with a machine of this offer; None when there is none."""
    left = need.units - units(offer)
    usd = None if need.usd_per_hour_most is None else need.usd_per_hour_most - offer.usd_per_hour
    too_many = need.overshoot_most is not None and -left > need.overshoot_most
    if need.machines_most < 1 or too_many or (usd is not None and usd < -1e-9):
        return None
    own, rest = need.cost(offer), Cover()
    if left > 0:
        others = [o for o in selection.fit if group_of(o) == group_of(offer)] if selection.gang else selection.fit
        most = need.machines_most - 1
        usd = None if usd is None else max(usd, 0.0)
        found = cheapest(others, replace(need, units=left, machines_most=most, usd_per_hour_most=usd))
        if found is None:
            return None
        rest = found
    return own[0] + rest.cost[0], own[1] + rest.cost[1], own[2] + rest.cost[2], own[3] + rest.cost[3]


def _limit(offer: Offer, selection: Selection) -> tuple[OfferRule, str]:
    """The limit that forbids every cover with this offer."""
    need = selection.need
    if need.usd_per_hour_most is not None and with_one(offer, selection, replace(need, usd_per_hour_most=None)):
        left = max(need.usd_per_hour_most, 0.0)
        if selection.budget is not None:
            return OfferRule.BUDGET, selection.budget.words
        return OfferRule.LIMIT, f"over the limit in all, of which {left:.2f} USD per hour are left"
    if with_one(offer, selection, replace(need, machines_most=need.units)):
        return OfferRule.SLOTS, f"takes more machines than the {need.machines_most} slots that are free"
    if need.overshoot_most is not None and with_one(offer, selection, replace(need, overshoot_most=None)):
        return OfferRule.OVERSHOOT, f"brings more than {need.overshoot_most} too many"
    if selection.gang and with_one(offer, replace(selection, gang=False), need):
        return OfferRule.PLACE, f"{place(group_of(offer))} alone cannot give all (--spread lifts it)"
    return OfferRule.LIMITS, "cannot give all within the limits on slots, price and overshoot together"


def _by_objective(offer: Offer, selection: Selection, with_it: Cost) -> tuple[OfferRule, str]:
    cover, spread = selection.cover, zip(_BY_OBJECTIVE, with_it, selection.cover.cost, strict=True)
    rule, worse = next(
        ((rule, mine > theirs) for rule, mine, theirs in spread if mine != theirs), (OfferRule.NAME, True)
    )
    if not worse:
        return OfferRule.NEXT, ""  # a machine of another offer is tried first
    usd = with_it[1] / 1_000_000
    match rule:
        case OfferRule.SPOT:
            return rule, "spot is preferred, and what is taken has fewer GPUs on demand"
        case OfferRule.PRICE:
            dearest = max(one.usd_per_gpu_hour for one in cover.offers)
            text = f"what is taken costs {cover.usd_per_hour:.2f} USD per hour in all, and {usd:.2f} with it"
            return rule, "" if offer.usd_per_gpu_hour >= dearest else text
        case OfferRule.FEWEST:
            return rule, f"the same price, and {with_it[2]} machines in place of {cover.cost[2]}"
        case OfferRule.ORDER:
            return rule, "the same price: the pool's order of providers decides"
    return rule, "as good: the first by name is taken"


GOOD_MAX = 5
OTHERS_MAX = 5


def considered(
    offers: Iterable[Offer],
    pool: Pool,
    target: Target,
    cooldowns: Mapping[CooldownKey, Cooldown],
    chosen: Collection[str],
    now: datetime,
    selection: Selection | None = None,
) -> Iterator[tuple[Offer, OfferRule, str]]:
    """The usable offers, best first, then the others that come nearest.

    Args:
        offers: of all providers.
        pool: the pool that would rent them.
        target: of that pool.
        cooldowns: those in force.
        chosen: keys of the chosen offers; the result has all of them.
        now: UTC.
        selection: what the pool chose from; None when nothing is to be rented.

    Yields:
        Each offer with the rule that decided about it, and the reason against it. The reason is "" for a chosen offer,
        for one that only costs more, and for one that only comes later.
    """
    offers = list(offers)
    good = ranked(offers, pool, target, cooldowns, now)
    taken = [offer for offer in good if offer.key in chosen]
    beside = [offer for offer in good if offer.key not in chosen][:GOOD_MAX]
    for offer in [one for one in good if one in taken or one in beside]:
        yield offer, *_why_not_taken(offer, offer.key in chosen, selection)
    fit = {offer.key for offer in good}
    others = [
        (tuple(misses(offer, pool, target)), offer)
        for offer in offers
        if offer.key not in fit and gpus.matches(target.gpu or pool.gpu, offer.gpu)
    ]
    others.sort(key=lambda one: nearness(one[1], one[0], pool))
    # An offer that does not suit in one zone rarely suits in the next one, so it is listed once.
    kinds: dict[object, tuple[tuple[Miss, ...], Offer]] = {}
    for against, offer in others:
        kind = (offer.provider, offer.instance_type, offer.spot, against) if against else offer.key
        kinds.setdefault(kind, (against, offer))
    for against, offer in islice(kinds.values(), OTHERS_MAX):
        if against:
            yield offer, OfferRule.MISFIT, "; ".join(miss.text for miss in against)
        else:
            yield offer, OfferRule.COOLING, _cooling(offer, cooldowns, now, pool)


def _why_not_taken(offer: Offer, chosen: bool, selection: Selection | None) -> tuple[OfferRule, str]:
    if chosen:
        return OfferRule.TAKEN, ""
    return deciding_rule(offer, selection) if selection is not None else (OfferRule.NEXT, "")


def _cooling(offer: Offer, cooldowns: Mapping[CooldownKey, Cooldown], now: datetime, pool: Pool) -> str:
    cooldown = cooldown_of(offer, cooldowns, now, pool.name)
    return f"cooling down until {cooldown.until:%H:%M:%S} UTC: {cooldown.reason}" if cooldown else ""
