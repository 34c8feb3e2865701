"""`meshctl offers`: filters, sorts and folds the offers for people. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from meshd import gpus
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Desired, Target
from meshd.plan.placement import cooldown_of, pod_fault
from meshd.provider_api import Offer

NO_CAPACITY = "no free capacity"
COOLING = "cooling down"
PODS_REFUSED = "pods, which no pool takes"
ONLY_PODS = "no pods, and pools take only pods"


@dataclass(frozen=True, slots=True)
class OfferFilter:
    """What an offer must have to be shown. Empty fields do not constrain; several values in one are alternatives.

    Attributes:
        gpu: the normalised model; "h100" also matches "h100-sxm".
        gpus_per_node: the exact number; 0 for machines without GPUs.
        regions: regions or zones.
        spot: True for spot only, False for on demand only.
        pods: True for pods only, False for none.
        pod_providers: the providers that rent pods.
        gpu_memory_min_gib: of one GPU, as it is sold.
    """

    gpu: str = ""
    gpus_per_node: int | None = None
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    spot: bool | None = None
    pods: bool | None = None
    pod_providers: frozenset[str] = frozenset()
    max_usd_per_gpu_hour: float | None = None
    gpu_memory_min_gib: int = 0
    arch: str = ""

    def misses(self, offer: Offer) -> tuple[str, ...]:
        """Names of the fields that the offer does not meet."""
        limit = self.max_usd_per_gpu_hour
        checks = (
            ("gpu", bool(self.gpu) and not gpus.matches(self.gpu, offer.gpu)),
            ("gpus_per_node", self.gpus_per_node is not None and offer.gpus != self.gpus_per_node),
            ("providers", bool(self.providers) and offer.provider not in self.providers),
            ("regions", bool(self.regions) and not {offer.region, offer.zone} & set(self.regions)),
            ("spot", self.spot is not None and offer.spot is not self.spot),
            ("pods", self.pods is not None and (offer.provider in self.pod_providers) is not self.pods),
            ("max_usd_per_gpu_hour", limit is not None and offer.usd_per_gpu_hour > limit),
            ("gpu_memory_min_gib", offer.gpu_memory_gib < self.gpu_memory_min_gib),
            ("arch", bool(self.arch) and offer.arch != self.arch),
        )
        return tuple(name for name, missed in checks if missed)


@dataclass(frozen=True, slots=True)
class Near:
    """The offers that match the filter but for one of its fields.

    Attributes:
        nearest: the one with the most memory where that is too little, else the cheapest.
    """

    count: int
    nearest: Offer


@dataclass(frozen=True, slots=True)
class Found:
    """The answer.

    Attributes:
        shown: the rows in order, at most the limit. A row is one offer, or with `fold` all zones of one.
        matching: how many offers match the filter, shown or not.
        left_out: by reason, how many of them cannot be rented now and are not shown.
        near: by field of the filter, the offers that only this field excludes; empty when any offer matches.
    """

    shown: tuple[tuple[Offer, ...], ...]
    matching: int
    left_out: Mapping[str, int]
    near: Mapping[str, Near]


def find(
    offers: Iterable[Offer],
    offer_filter: OfferFilter,
    cooldowns: Mapping[CooldownKey, Cooldown],
    now: datetime,
    *,
    limit: int,
    everything: bool = False,
    by_provider: bool = False,
    fold: bool = False,
    refused: Mapping[str, str] | None = None,
) -> Found:
    """The offers that match the filter: cheapest GPU-hour first, those that cannot be rented now last.

    Args:
        offers: of all providers.
        offer_filter: the filter.
        cooldowns: those in force.
        now: UTC.
        limit: the most rows to show.
        everything: also show offers that cannot be rented now.
        by_provider: sort by the provider's name first.
        refused: by provider, why no pool rents there.
        fold: one row for the zones of a region where a type has the same price and availability.
    """
    matching: list[tuple[str, Offer]] = []
    missed: dict[str, list[Offer]] = {}
    for offer in offers:
        misses = offer_filter.misses(offer)
        if not misses:
            matching.append((_hindrance(offer, cooldowns, now, refused or {}), offer))
        elif len(misses) == 1:
            missed.setdefault(misses[0], []).append(offer)
    shown = sorted(
        ((why, offer) for why, offer in matching if everything or not why),
        key=lambda pair: (by_provider and pair[1].provider, bool(pair[0]), *_price_first(pair[1])),
    )
    rows = _folded(shown, cooldowns, now) if fold else [(offer,) for _, offer in shown]
    left_out = [why for why, _ in matching if why and not everything]
    near = {} if matching else {name: Near(len(o), _nearest(o, name)) for name, o in missed.items()}
    return Found(
        shown=tuple(rows[:limit]),
        matching=len(matching),
        left_out={why: left_out.count(why) for why in sorted(set(left_out))},
        near=near,
    )


def _nearest(offers: Sequence[Offer], field: str) -> Offer:
    """Which offer comes nearest to a filter that only this field keeps it from."""
    if field == "gpu_memory_min_gib":
        return min(offers, key=lambda offer: (-offer.gpu_memory_gib, _price_first(offer)))
    return min(offers, key=_price_first)


def _folded(
    shown: Iterable[tuple[str, Offer]], cooldowns: Mapping[CooldownKey, Cooldown], now: datetime
) -> list[tuple[Offer, ...]]:
    """Group offers that differ only in their zone, in the place of the first. One with its own cooldown stays alone."""
    rows: dict[tuple[object, ...], list[Offer]] = {}
    for why, offer in shown:
        cooldown = cooldown_of(offer, cooldowns, now)
        rows.setdefault((why, cooldown and cooldown.key, replace(offer, zone="")), []).append(offer)
    return [tuple(row) for row in rows.values()]


def refused_by_all(desired: Desired) -> dict[str, str]:
    """The providers whose machines are refused, as pods or as no pods, by every pool that has them; each with why."""
    found: dict[str, str] = {}
    for provider in {name for pool in desired.pools.values() for name in pool.providers}:
        pools = [pool for pool in desired.pools.values() if provider in pool.providers]
        if all(pod_fault(provider, pool, desired.target(pool) or Target(pool.name, 0)) for pool in pools):
            found[provider] = PODS_REFUSED if provider in pools[0].pod_providers else ONLY_PODS
    return found


def _hindrance(
    offer: Offer, cooldowns: Mapping[CooldownKey, Cooldown], now: datetime, refused: Mapping[str, str]
) -> str:
    if offer.provider in refused:
        return refused[offer.provider]
    if offer.available is False:
        return NO_CAPACITY
    return COOLING if cooldown_of(offer, cooldowns, now) else ""


def _price_first(offer: Offer) -> tuple[bool, float, float, str]:
    """Machines without GPUs have no price per GPU: they come after the others."""
    return not offer.gpus, offer.usd_per_gpu_hour, offer.usd_per_hour, offer.key
