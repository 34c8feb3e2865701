"""The places in which a gang can have its machines, best first. PURE."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from meshd.plan.cover import micros
from meshd.plan.gang import Group, group_of
from meshd.provider_api import Offer


class Places:
    """The offers of each place, best first, and the places by their best offer."""

    def __init__(
        self,
        offers: Iterable[Offer],
        place_of: Callable[[Offer], Group],
        objective: Callable[[Offer], tuple[bool, int, int, int, str]],
    ) -> None:
        self._objective = objective
        found: dict[Group, list[Offer]] = {}
        for offer in offers:
            found.setdefault(place_of(offer), []).append(offer)
        self._offers = {group: sorted(mine, key=objective) for group, mine in found.items()}
        self._order = sorted(self._offers, key=lambda group: objective(self._offers[group][0]))

    def offers(self, group: Group) -> Sequence[Offer]:
        """Those of one place, best first."""
        return self._offers.get(group, ())

    def cheapest(
        self, count: int, limit: int | None, here: Iterable[Group] = (), without: Group | None = None
    ) -> Offer | None:
        """The offer of which `count` machines are best, all in one place; None when nothing is within the limit.

        Args:
            count: how many machines.
            limit: micro-USD per hour for all of them together; None for no limit.
            here: places that are preferred at equal cost.
            without: a place that does not count.
        """
        best: Offer | None = None
        near = set(here)
        for group in self._order:
            if group == without:
                continue
            if best is not None and self._objective(self._offers[group][0])[:2] > self._objective(best)[:2]:
                break
            found = first_within(self._offers[group], count, limit)
            if found is not None and (best is None or self._rank(found, near) < self._rank(best, near)):
                best = found
        return best

    def _rank(self, offer: Offer, near: set[Group]) -> tuple[bool, int, bool, int, int, str]:
        spot, price, gpus, order, key = self._objective(offer)
        return spot, price, group_of(offer) not in near, gpus, order, key


def first_within(offers: Sequence[Offer], count: int, limit: int | None) -> Offer | None:
    """The first of these offers of which `count` machines are within the limit, in micro-USD per hour."""
    return next((o for o in offers if limit is None or micros(o.usd_per_hour) * count <= limit), None)
