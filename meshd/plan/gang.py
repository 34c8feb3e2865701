"""Gangs: all machines of a target in one place, and the best cover out of one place. PURE.

A gang's machines work on one job, so they are of one provider and region; `--spread` lifts that. The place is not
stored: it follows from the machines that exist, so an interrupted plan goes on where it was.
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
    """The place of an offer."""
    return one.provider, one.region


def place(group: Group) -> str:
    """A group for people."""
    return " ".join(part for part in group if part)


def is_gang(pool: Pool, target: Target) -> bool:
    """Whether the machines of this target must be in one place."""
    return bool(pool.gpu) and not target.spread


def groups_of(machines: Sequence[Machine], target: Target) -> tuple[Group, ...]:
    """The places of these machines. If machines rented for this target are all in one place, only that one."""
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
    """The best cover of the whole need out of one group; None when no group can cover it.

    Args:
        offers: the usable offers of all groups.
        need: what is to be covered.
        here: groups that already have machines; preferred at equal cost.
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
    """The best cover of as much of the need as one group can cover; it may be empty."""
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
    """A lower bound of every cover's cost out of this table: on-demand GPUs and micro-USD."""
    if not costs:
        return (0, 0)
    dearest_share = min(cost[0] / kind[0] for kind, cost in costs.items())
    price = min(cost[1] / kind[0] for kind, cost in costs.items())
    return ceil(need.units * dearest_share), int(need.units * price)
