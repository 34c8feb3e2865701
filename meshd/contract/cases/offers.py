"""Offers."""

from __future__ import annotations

from meshd.contract.cases.base import Cases
from meshd.contract.rig import Rig
from meshd.contract.steps import rentable
from meshd.provider_api import Offer, Provider


class OfferCases(Cases):
    """Offers are complete and priced."""

    async def test_offers_are_complete(self, provider: Provider) -> None:
        offers = await provider.offers()
        assert offers
        for offer in offers:
            assert offer.provider == provider.name
            assert bool(offer.gpus) is bool(offer.gpu) is (offer.gpu_memory_gib > 0)
            assert offer.usd_per_hour > 0
            assert offer.region and offer.instance_type
            assert offer.vcpus > 0 and offer.memory_mib > 1024
            assert offer.price_as_of is not None and offer.price_as_of.tzinfo is not None

    async def test_offers_include_what_the_rig_wants_rented(self, rig: Rig, provider: Provider) -> None:
        assert await rentable(rig, provider)

    async def test_offers_have_unique_keys(self, provider: Provider) -> None:
        keys = [offer.key for offer in await provider.offers()]
        assert len(keys) == len(set(keys))

    async def test_spot_offers_exist_where_the_cloud_has_spot(self, provider: Provider) -> None:
        assert any(offer.spot for offer in await provider.offers()) is provider.capabilities.spot

    async def test_offers_never_call_a_full_region_free(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        rig.set_capacity(offer, 0)
        again = {found.key: found.available for found in await provider.offers()}
        assert again.get(offer.key) is not True
