"""Which rule decided that an offer is not among the machines to rent. PURE.

The question is put to the cover itself: what would the best cover with one machine of this offer be? Where there is
none, the limit that stands in its way decided; else the first part of the merit in which it is worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from meshd.plan.cover import Cost, Cover, Need, cheapest, units
from meshd.plan.gang import Group, group_of, place
from meshd.provider_api import Offer


class Rule(StrEnum):
    """What decided about an offer."""

    TAKEN = "taken"
    NEXT = "next"
    """Nothing speaks against it; it is not its turn."""
    SPOT = "spot_preferred"
    PRICE = "price"
    """The machines that are taken cost less in all."""
    FEWEST = "fewest_machines"
    ORDER = "provider_order"
    NAME = "name"
    """It is as good, and the first by name is taken."""
    PLACE = "place"
    """All machines of the target are in one place, which is another."""
    LIMIT = "limit_in_all"
    SLOTS = "slots"
    OVERSHOOT = "overshoot"
    LIMITS = "limits_together"
    COOLING = "cooling_down"
    MISFIT = "misfit"
    """It is not what the pool or the target wants."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a pool chose from.

    Attributes:
        fit: the offers that would do.
        need: what was to be covered, within which limits.
        cover: what is rented: the whole need, or as much of it as can be had.
        here: where the machines are already.
        gang: all machines have to be in one place.
    """

    fit: Sequence[Offer]
    need: Need
    cover: Cover
    here: tuple[Group, ...] = ()
    gang: bool = False


_BY_MERIT = (Rule.SPOT, Rule.PRICE, Rule.FEWEST, Rule.ORDER)
"""In the order of `cover.Cost`."""


def decided(offer: Offer, choice: Choice) -> tuple[Rule, str]:
    """The rule that kept an offer that would do out of the cover, and its words.

    The words of PRICE are "" for an offer that is dearer for each GPU as well: that shows by itself.
    """
    taken = {one.key for one in choice.cover.offers}
    if offer.key in taken:
        return Rule.TAKEN, ""
    if choice.gang and len(choice.here) == 1 and group_of(offer) not in choice.here:
        where = place(choice.here[0])
        return Rule.PLACE, f"in {place(group_of(offer))}: the target's machines are in {where} (--spread lifts it)"
    with_it = with_one(offer, choice, choice.need)
    if with_it is None:
        return _limit(offer, choice)
    if choice.cover.units < choice.need.units:
        return Rule.NEXT, ""
    return _by_merit(offer, choice, with_it)


def with_one(offer: Offer, choice: Choice, need: Need) -> Cost | None:
    """The cost of the best cover of the whole need that has a machine of this offer; None when there is none."""
    left = need.units - units(offer)
    usd = None if need.usd_per_hour_most is None else need.usd_per_hour_most - offer.usd_per_hour
    too_many = need.overshoot_most is not None and -left > need.overshoot_most
    if need.machines_most < 1 or too_many or (usd is not None and usd < -1e-9):
        return None
    own, rest = need.cost(offer), Cover()
    if left > 0:
        others = [o for o in choice.fit if group_of(o) == group_of(offer)] if choice.gang else choice.fit
        most = need.machines_most - 1
        usd = None if usd is None else max(usd, 0.0)
        found = cheapest(others, replace(need, units=left, machines_most=most, usd_per_hour_most=usd))
        if found is None:
            return None
        rest = found
    return own[0] + rest.cost[0], own[1] + rest.cost[1], own[2] + rest.cost[2], own[3] + rest.cost[3]


def _limit(offer: Offer, choice: Choice) -> tuple[Rule, str]:
    """Which limit forbids every cover with this offer."""
    need = choice.need
    if need.usd_per_hour_most is not None and with_one(offer, choice, replace(need, usd_per_hour_most=None)):
        left = max(need.usd_per_hour_most, 0.0)
        return Rule.LIMIT, f"over the limit in all, of which {left:.2f} USD per hour are left"
    if with_one(offer, choice, replace(need, machines_most=need.units)):
        return Rule.SLOTS, f"takes more machines than the {need.machines_most} slots that are free"
    if need.overshoot_most is not None and with_one(offer, choice, replace(need, overshoot_most=None)):
        return Rule.OVERSHOOT, f"brings more than {need.overshoot_most} too many"
    if choice.gang and with_one(offer, replace(choice, gang=False), need):
        return Rule.PLACE, f"{place(group_of(offer))} alone cannot give all (--spread lifts it)"
    return Rule.LIMITS, "cannot give all within the limits on slots, price and overshoot together"


def _by_merit(offer: Offer, choice: Choice, with_it: Cost) -> tuple[Rule, str]:
    cover, spread = choice.cover, zip(_BY_MERIT, with_it, choice.cover.cost, strict=True)
    rule, worse = next(((rule, mine > theirs) for rule, mine, theirs in spread if mine != theirs), (Rule.NAME, True))
    if not worse:
        return Rule.NEXT, ""  # a machine of another offer is tried first
    usd = with_it[1] / 1_000_000
    match rule:
        case Rule.SPOT:
            return rule, "spot is preferred, and what is taken has fewer GPUs on demand"
        case Rule.PRICE:
            dearest = max(one.usd_per_gpu_hour for one in cover.offers)
            text = f"what is taken costs {cover.usd_per_hour:.2f} USD per hour in all, and {usd:.2f} with it"
            return rule, "" if offer.usd_per_gpu_hour >= dearest else text
        case Rule.FEWEST:
            return rule, f"the same price, and {with_it[2]} machines in place of {cover.cost[2]}"
        case Rule.ORDER:
            return rule, "the same price: the pool's order of providers decides"
    return rule, "as good: the first by name is taken"
