"""The cheapest set of whole machines that has the needed GPUs. PURE and exact.

Each offer may be taken any number of times, since a cloud's capacity is not known before it is asked. So for each
number of GPUs in a machine, spot or on demand, only the best offer matters. That leaves a small integer programme: at
most `k` machines with at least `n` GPUs. It is solved by halving. Sort the machines of any choice by size and deal them
out in turns: that makes two halves whose GPUs differ by at most one machine's. So the best `k` machines with exactly
`g` GPUs are the best pair of such halves, with a few candidates at each of log2(k) levels: ten thousand GPUs take
hardly longer than sixty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from meshd.model.budget import USD_MAX
from meshd.provider_api import Offer

MICROS = 1_000_000
SPOT_EXACT_UNITS = 512
"""Beyond this many GPUs the price decides, and not the share of spot, if the limit on the whole price binds."""

Cost = tuple[int, int, int, int]
"""The objective, most important part first: on-demand GPUs (0 unless spot is preferred), micro-USD per hour, machines,
and the sum of the providers' places in the order of preference. Costs add up: the best whole consists of best parts."""

Kind = tuple[int, bool]
"""Offers of one kind differ only in price: the GPUs in one machine, and whether it is spot."""

_FREE: Cost = (0, 0, 0, 0)


def units(offer: Offer) -> int:
    """What a machine of this offer counts towards a target: its GPUs; one for a CPU-only machine."""
    return offer.gpus or 1


def micros(usd: float) -> int:
    """A price as a whole number, so that sums do not depend on their order. What is beyond USD_MAX counts as that."""
    return round(max(-USD_MAX, min(usd, USD_MAX)) * MICROS)


@dataclass(frozen=True, slots=True)
class Need:
    """What is to be covered.

    Attributes:
        units: GPUs, or machines where they have none.
        machines_most: free slots.
        overshoot_most: the most units beyond `units`; None: as many as is cheapest.
        usd_per_hour_most: of all machines of the cover together; None for no limit.
        prefer_spot: first as few on-demand GPUs as possible, then the price.
        preference: by provider, its place in the pool's order.
    """

    units: int
    machines_most: int
    overshoot_most: int | None = None
    usd_per_hour_most: float | None = None
    prefer_spot: bool = False
    preference: Mapping[str, int] = field(default_factory=dict)

    @property
    def units_most(self) -> int | None:
        """The most units that a cover may have."""
        return None if self.overshoot_most is None else self.units + self.overshoot_most

    @property
    def micros_most(self) -> int | None:
        """The limit as a whole number."""
        return None if self.usd_per_hour_most is None else micros(self.usd_per_hour_most)

    def cost(self, offer: Offer) -> Cost:
        """The cost of one machine of this offer."""
        on_demand = units(offer) if self.prefer_spot and not offer.spot else 0
        return on_demand, micros(offer.usd_per_hour), 1, self.preference.get(offer.provider, len(self.preference))


@dataclass(frozen=True, slots=True)
class Cover:
    """The machines to rent, one offer for each, the largest machines first."""

    offers: tuple[Offer, ...] = ()
    cost: Cost = _FREE

    @property
    def units(self) -> int:
        """Their units in all."""
        return sum(units(offer) for offer in self.offers)

    @property
    def usd_per_hour(self) -> float:
        """Their price in all."""
        return self.cost[1] / MICROS


def best_of_kind(offers: Iterable[Offer], need: Need) -> dict[Kind, Offer]:
    """The offers that can be in a best cover: one of each kind, in an order of their own."""
    best: dict[Kind, tuple[Cost, Offer]] = {}
    for offer in offers:
        kind, cost = (units(offer), offer.spot), need.cost(offer)
        known = best.get(kind)
        if known is None or cost < known[0] or (cost == known[0] and offer.key < known[1].key):
            best[kind] = cost, offer
    return {kind: best[kind][1] for kind in sorted(best)}


def cheapest(offers: Iterable[Offer], need: Need) -> Cover | None:
    """The best cover of the whole need; None when these offers cannot cover it within the limits."""
    kinds = best_of_kind(offers, need)
    return covered(kinds, whole(costs_of(kinds, need), need), need)


def fullest(offers: Iterable[Offer], need: Need) -> Cover:
    """The best cover of as much of the need as possible within the limits; it may be empty."""
    kinds = best_of_kind(offers, need)
    return covered(kinds, most(costs_of(kinds, need), need), need) or Cover()


def costs_of(kinds: Mapping[Kind, Offer], need: Need) -> dict[Kind, Cost]:
    """Everything that the choice of a cover depends on: equal tables lead to equal choices."""
    return {kind: need.cost(offer) for kind, offer in kinds.items()}


def covered(kinds: Mapping[Kind, Offer], chosen: Iterable[Kind] | None, need: Need) -> Cover | None:
    """The cover that takes these kinds."""
    if chosen is None:
        return None
    offers = sorted((kinds[kind] for kind in chosen), key=lambda offer: (-units(offer), offer.usd_per_hour, offer.key))
    return Cover(tuple(offers), _sum(need.cost(offer) for offer in offers))


def whole(costs: Mapping[Kind, Cost], need: Need) -> list[Kind] | None:
    """The kinds of the best cover of the whole need, one for each machine; None when there is none."""
    if need.units <= 0:
        return []
    return _Solver(costs, need).between(need.units, need.units_most)


def most(costs: Mapping[Kind, Cost], need: Need) -> list[Kind]:
    """The kinds of the best cover of the most units that are possible, fewer than needed."""
    solver = _Solver(costs, need)
    low, high = 0, need.units  # `low` units are possible, `high` units are not
    while high - low > 1:
        middle = (low + high) // 2
        if solver.possible(middle, need.units - 1):
            low = middle
        else:
            high = middle
    return (solver.between(low, need.units - 1) or []) if low else []


class _Solver:
    """Finds the best cover of one need out of one table of kinds."""

    def __init__(self, costs: Mapping[Kind, Cost], need: Need) -> None:
        # A best cover has no machine that could be left out, so it has at most one for each unit.
        self._machines = min(need.machines_most, need.units)
        self._need = need
        self._costs = costs
        self._largest = max((size for size, _ in costs), default=0)
        self._by_objective = self._by_price = _Halves(costs)
        if need.prefer_spot:
            self._by_price = _Halves({kind: (0, cost[1], cost[2], cost[3]) for kind, cost in costs.items()})

    def between(self, low: int, high: int | None) -> list[Kind] | None:
        """The best cover of at least `low` units and at most `high`."""
        found = self._least(self._by_objective, low, high)
        if found is None:
            return None
        if self._affordable(found[0]):
            return self._by_objective.kinds(self._machines, found[1])
        if not self._need.prefer_spot or not self.possible(low, high):
            return None
        return self._most_spot(low, high) if low <= SPOT_EXACT_UNITS else self._cheap(low, high)

    def possible(self, low: int, high: int | None) -> bool:
        """Whether there is a cover of at least `low` units and at most `high`."""
        found = self._least(self._by_price, low, high)
        return found is not None and self._affordable(found[0])

    def _cheap(self, low: int, high: int | None) -> list[Kind] | None:
        found = self._least(self._by_price, low, high)
        return self._by_price.kinds(self._machines, found[1]) if found is not None else None

    def _affordable(self, cost: Cost) -> bool:
        limit = self._need.micros_most
        return limit is None or cost[1] <= limit

    def _sizes(self, low: int, high: int | None) -> range:
        """The numbers of units that a best cover of at least `low` can have: without one machine it has fewer."""
        top = low + self._largest - 1
        return range(low, (top if high is None else min(top, high)) + 1)

    def _least(self, table: _Halves, low: int, high: int | None) -> tuple[Cost, int] | None:
        found = ((table.best(self._machines, size), size) for size in self._sizes(low, high))
        return min(((cost, size) for cost, size in found if cost is not None), default=None)

    def _most_spot(self, low: int, high: int | None) -> list[Kind] | None:
        """The best cover when the one with the most spot costs too much: as few on-demand GPUs as the limit allows."""
        spot = _Halves({kind: cost for kind, cost in self._costs.items() if kind[1]})
        demand = _Halves({kind: cost for kind, cost in self._costs.items() if not kind[1]})
        for on_demand in range(self._sizes(low, high)[-1] + 1):
            rest = max(low - on_demand, 0)
            sizes = self._sizes(rest, None if high is None else high - on_demand) if rest else range(1)
            pairs = (self._pair(demand, on_demand, spot, size) for size in sizes)
            best = min((pair for pair in pairs if pair is not None), default=None)
            if best is not None and self._affordable(best[0]):
                _, of_demand, size = best
                return [*demand.kinds(of_demand, on_demand), *spot.kinds(self._machines - of_demand, size)]
        return None

    def _pair(self, demand: _Halves, on_demand: int, spot: _Halves, size: int) -> tuple[Cost, int, int] | None:
        """The best cost of both together, how many machines the on-demand part may have, and the spot part's size."""
        one, other = demand.best(self._machines, on_demand), spot.best(self._machines, size)
        if one is None or other is None:
            return None
        if one[2] + other[2] <= self._machines:
            return _sum((one, other)), one[2], size
        shared = (  # slots are scarce, so try each split of them
            (_sum((one, other)), machines, size)
            for machines in range(self._machines + 1)
            if (one := demand.best(machines, on_demand)) is not None
            and (other := spot.best(self._machines - machines, size)) is not None
        )
        return min(shared, default=None)


class _Halves:
    """The best choice of at most N machines with exactly M units, for one table of kinds."""

    def __init__(self, costs: Mapping[Kind, Cost]) -> None:
        self._kinds: dict[int, tuple[Cost, Kind]] = {}
        for kind, cost in costs.items():
            if kind[0] not in self._kinds or cost < self._kinds[kind[0]][0]:
                self._kinds[kind[0]] = cost, kind
        self._largest = max(self._kinds, default=0)
        self._known: dict[tuple[int, int], tuple[Cost, int] | None] = {}

    def best(self, machines: int, size: int) -> Cost | None:
        """What the best choice costs; None when there is none."""
        if size == 0:
            return _FREE
        if size > machines * self._largest:
            return None
        if machines == 1:
            return self._kinds[size][0] if size in self._kinds else None
        split = self._split(machines, size)
        return split[0] if split is not None else None

    def _split(self, machines: int, size: int) -> tuple[Cost, int] | None:
        """The best cost, and the units of the larger half."""
        if (machines, size) not in self._known:
            fewer, found = machines // 2, None
            for larger in range((size + 1) // 2, min((size + self._largest) // 2, size) + 1):
                one = self.best(machines - fewer, larger)
                other = self.best(fewer, size - larger) if one is not None else None
                if one is not None and other is not None:
                    total = (one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3])
                    if found is None or total < found[0]:
                        found = total, larger
            self._known[machines, size] = found
        return self._known[machines, size]

    def kinds(self, machines: int, size: int) -> list[Kind]:
        """The kinds of the best choice, which must exist."""
        return list(self._chosen(machines, size))

    def _chosen(self, machines: int, size: int) -> Iterator[Kind]:
        if size == 0:
            return
        if machines == 1:
            yield self._kinds[size][1]
            return
        split = self._split(machines, size)
        if split is not None:
            yield from self._chosen(machines - machines // 2, split[1])
            yield from self._chosen(machines // 2, size - split[1])


def _sum(costs: Iterable[Cost]) -> Cost:
    total = _FREE
    for cost in costs:
        total = (total[0] + cost[0], total[1] + cost[1], total[2] + cost[2], total[3] + cost[3])
    return total
