"""What can be rented: `meshctl offers`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

from meshd.api import schema as s
from meshd.daemon.head_api import views
from meshd.daemon.head_api.state import HeadState
from meshd.model.desired import Desired
from meshd.model.observed import Snapshot
from meshd.plan.offers import OfferFilter, find, refused_by_all
from meshd.plan.placement import cooldown_of
from meshd.plan.prices import is_stale, price_age_s
from meshd.provider_api import Offer


class OfferService:
    """Answers OFFERS.

    Args:
        state: the sources.
        read_offers: reads the offers of all clouds now.
    """

    def __init__(self, state: HeadState, read_offers: Callable[[], Awaitable[None]]) -> None:
        self._state = state
        self._read_offers = read_offers

    async def offers(self, query: s.OffersQuery) -> s.OffersView:
        """What can be rented, by the last readings; with `refresh` meshd reads the offers first.

        A cloud that does not answer in time is shown as it was read last: `sources` has the time.
        """
        self._state.tick()
        if query.refresh:
            await self._read_offers()
        return offers_view(self._state.snapshot(), query, self._state.desired(), self._state.clock.now())


def offers_view(snapshot: Snapshot, query: s.OffersQuery, desired: Desired, now: datetime) -> s.OffersView:
    """The last-read offers that match the query."""
    offers = snapshot.known_offers
    criteria = OfferFilter(
        gpu=query.gpu or "", gpus_per_node=query.gpus_per_node, providers=query.provider, regions=query.region,
        spot=query.spot, max_usd_per_gpu_hour=query.max_usd_per_gpu_hour, arch=query.arch or "",
        gpu_memory_min_gib=query.gpu_memory_min_gib, pods=query.pods,
        pod_providers=frozenset(desired.policy.pod_limits),
    )  # fmt: skip
    refused = refused_by_all(desired)
    found = find(
        offers,
        criteria,
        desired.cooldowns,
        now,
        limit=query.limit,
        everything=query.all,
        by_provider=query.sort == "provider",
        fold=query.fold,
        refused=refused,
    )
    return s.OffersView(
        at=now,
        offers=[_row(offers, desired, now, refused) for offers in found.shown],
        sources=[source for source in views.sources(snapshot, now) if source.name.startswith("offers:")],
        total=len(offers),
        matching=found.matching,
        left_out=dict(found.left_out),
        near=[
            s.NearRow(
                field=_FIELDS.get(name, name), count=near.count, offer=offer_row(near.nearest, desired, now, refused)
            )
            for name, near in found.near.items()
        ],
        gpus=sorted({offer.gpu for offer in offers if offer.gpu}),
        regions=sorted({word for offer in offers for word in (offer.region, offer.zone) if word}),
    )


_FIELDS = {"providers": "provider", "regions": "region"}
"""Fields of OfferFilter that have another name in OffersQuery."""


def _row(offers: Sequence[Offer], desired: Desired, now: datetime, refused: Mapping[str, str]) -> s.OfferRow:
    """One row for offers that differ only in their zone."""
    row = offer_row(offers[0], desired, now, refused)
    return row.model_copy(update={"zones": [offer.zone for offer in offers]}) if len(offers) > 1 else row


def offer_row(offer: Offer, desired: Desired, now: datetime, refused: Mapping[str, str]) -> s.OfferRow:
    """One offer; `refused` as in `find`."""
    cooldown = cooldown_of(offer, desired.cooldowns, now)
    return s.OfferRow(
        offer=offer.key, provider=offer.provider, region=offer.region, zone=offer.zone,
        instance_type=offer.instance_type, gpu=offer.gpu, gpus=offer.gpus, gpu_memory_gib=offer.gpu_memory_gib,
        vcpus=offer.vcpus, memory_mib=offer.memory_mib, arch=offer.arch, spot=offer.spot,
        usd_per_hour=offer.usd_per_hour, usd_per_gpu_hour=round(offer.usd_per_gpu_hour, 4),
        available=offer.available, capacity_hint=offer.capacity_hint,
        price_age_s=price_age_s(offer, now), price_stale=is_stale(offer, now, desired.policy.price_stale_after_s),
        price_source=offer.price_source.value,
        refused=f"{why} ({_cure(offer, desired)})" if (why := refused.get(offer.provider)) else "",
        pod=offer.provider in desired.policy.pod_limits, limits=desired.policy.pod_limits.get(offer.provider, ""),
        blocked_until=cooldown.until if cooldown else None, blocked_reason=cooldown.reason if cooldown else "",
    )  # fmt: skip


def _cure(offer: Offer, desired: Desired) -> str:
    """The settings, or the options of targets, that would have to change."""
    pools = [pool for pool in desired.pools.values() if offer.provider in pool.providers]
    targets = {pool.name: desired.target(pool) for pool in pools}
    said = {name for name, target in targets.items() if target is not None and target.pods}
    return ", ".join(f"scale --pool {name} --pods" if name in said else f"pools.{name}.pods" for name in targets)
