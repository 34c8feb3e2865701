"""All machines of a target in one place: which place, and when the whole gang moves to another. PURE.

A gang's machines work on one job, so they are of one provider and region; `--spread` lifts that. Nothing remembers the
place: it follows from the machines that are there, so that a plan that was cut short is taken up where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import ceil

from meshd.model.desired import Pool, Target
from meshd.model.machine import Machine
from meshd.plan.cover import Cost, Cover, Kind, Need, best_of_kind, costs_of, covered, most, whole
from meshd.provider_api import Offer

Group = tuple[str, str]
"""A provider and one of its regions."""


def group_of(one: Offer) -> Group:
    """Where an offer is."""
    return one.provider, one.region


def place(group: Group) -> str:
    """A group for people."""
    return " ".join(part for part in group if part)


def is_gang(pool: Pool, target: Target) -> bool:
    """Whether the machines of this target have to be together."""
    return bool(pool.gpu) and not target.spread


def groups_of(machines: Sequence[Machine], target: Target) -> tuple[Group, ...]:
    """Where these machines are; of several places the one that was chosen for this target, if it was chosen already."""
    newer = {group_of(m.offer) for m in machines if target.at is not None and m.created_at >= target.at}
    if len(newer) == 1:
        return tuple(newer)
    return tuple(sorted({group_of(m.offer) for m in machines}))


def by_group(offers: Iterable[Offer]) -> dict[Group, list[Offer]]:
    """The offers of each group."""
    groups: dict[Group, list[Offer]] = {}
    for offer in offers:
        groups.setdefault(group_of(offer), []).append(offer)
    return groups


def cheapest_in_one(offers: Iterable[Offer], need: Need, here: Collection[Group] = ()) -> Cover | None:
    """The best cover of the whole need out of any one group; None when no group can give it.

    Args:
        offers: of all groups that may be taken.
        need: what is to be covered.
        here: groups where machines are already; taken when another one is not cheaper.
    """
    kinds = {group: best_of_kind(found, need) for group, found in by_group(offers).items()}
    costs = {group: costs_of(found, need) for group, found in kinds.items()}
    bounds = {group: _bound(table, need) for group, table in costs.items()}
    solved: dict[tuple[tuple[Kind, Cost], ...], list[Kind] | None] = {}
    best: Cover | None = None
    for group in sorted(kinds, key=lambda group: (bounds[group], group)):
        if best is not None and bounds[group] > best.cost[:2]:
            break
        same = tuple(costs[group].items())
        if same not in solved:  # many regions have the same prices
            solved[same] = whole(costs[group], need)
        cover = covered(kinds[group], solved[same], need)
        if cover is not None and (best is None or _objective(cover, here) < _objective(best, here)):
            best = cover
    return best


def fullest_in_one(offers: Iterable[Offer], need: Need, here: Collection[Group] = ()) -> Cover:
    """The best cover of as much as one group can give; maybe empty."""
    solved: dict[tuple[tuple[Kind, Cost], ...], list[Kind]] = {}
    best = Cover()
    for _, found in sorted(by_group(offers).items()):
        kinds = best_of_kind(found, need)
        costs = costs_of(kinds, need)
        same = tuple(costs.items())
        if same not in solved:
            solved[same] = most(costs, need)
        cover = covered(kinds, solved[same], need) or Cover()
        if (-cover.units, _objective(cover, here)) < (-best.units, _objective(best, here)):
            best = cover
    return best


def _objective(cover: Cover, here: Collection[Group]) -> tuple[int, int, bool, int, int, tuple[str, ...]]:
    on_demand, price, machines, preference = cover.cost
    away = not any(group_of(offer) in here for offer in cover.offers[:1])
    return on_demand, price, away, machines, preference, tuple(offer.key for offer in cover.offers)


def _bound(costs: dict[Kind, Cost], need: Need) -> tuple[int, int]:
    """No cover out of this table is better than so many on-demand GPUs at so many micro-USD."""
    if not costs:
        return (0, 0)
    dearest_share = min(cost[0] / kind[0] for kind, cost in costs.items())
    price = min(cost[1] / kind[0] for kind, cost in costs.items())
    return ceil(need.units * dearest_share), int(need.units * price)
