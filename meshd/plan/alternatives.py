"""The offers that a choice was made from, each with why it was not taken. PURE."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice

from meshd import gpus
from meshd.model.desired import Cooldown, Pool, Target
from meshd.plan.choice import Choice, Rule, decided
from meshd.plan.placement import Miss, blocked_by, misses, ranked
from meshd.provider_api import Offer

GOOD_MAX = 5
OTHERS_MAX = 5


def looked_at(
    offers: Iterable[Offer],
    pool: Pool,
    target: Target,
    blocks: Mapping[str, Cooldown],
    chosen: Collection[str],
    now: datetime,
    choice: Choice | None = None,
) -> Iterator[tuple[Offer, Rule, str]]:
    """The offers that would do, best first, then the nearest of those that would not.

    Args:
        offers: of all providers.
        pool: whose machines they would be.
        target: of that pool.
        blocks: what is left alone for a while.
        chosen: keys of the offers that are taken; all of them are among the result.
        now: UTC.
        choice: what was chosen from; None when nothing is to be rented.

    Returns:
        Each offer with the rule that decided about it, and why it is not taken; "" for a taken one, for one that is
        merely dearer, and for one whose turn it is not.
    """
    offers = list(offers)
    good = ranked(offers, pool, target, blocks, now)
    taken = [offer for offer in good if offer.key in chosen]
    beside = [offer for offer in good if offer.key not in chosen][:GOOD_MAX]
    for offer in [one for one in good if one in taken or one in beside]:
        yield offer, *_of_good(offer, offer.key in chosen, choice)
    fit = {offer.key for offer in good}
    others = [
        (tuple(misses(offer, pool, target)), offer)
        for offer in offers
        if offer.key not in fit and gpus.matches(target.gpu or pool.gpu, offer.gpu)
    ]
    others.sort(key=lambda one: (len(one[0]), one[1].usd_per_gpu_hour, one[1].key))
    # What will not do in one zone mostly will not in the next either: once is enough.
    kinds: dict[object, tuple[tuple[Miss, ...], Offer]] = {}
    for against, offer in others:
        kind = (offer.provider, offer.instance_type, offer.spot, against) if against else offer.key
        kinds.setdefault(kind, (against, offer))
    for against, offer in islice(kinds.values(), OTHERS_MAX):
        if against:
            yield offer, Rule.MISFIT, "; ".join(miss.text for miss in against)
        else:
            yield offer, Rule.COOLING, _cooling(offer, blocks, now, pool)


def _of_good(offer: Offer, chosen: bool, choice: Choice | None) -> tuple[Rule, str]:
    if chosen:
        return Rule.TAKEN, ""
    return decided(offer, choice) if choice is not None else (Rule.NEXT, "")


def _cooling(offer: Offer, blocks: Mapping[str, Cooldown], now: datetime, pool: Pool) -> str:
    block = blocked_by(offer, blocks, now, pool.name)
    return f"cooling down until {block.until:%H:%M:%S} UTC: {block.reason}" if block else ""
