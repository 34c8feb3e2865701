"""Offers."""

from __future__ import annotations

from meshd.contract.cases.base import Cases
from meshd.contract.rig import Rig
from meshd.provider_api import Offer, OfferQuery, Provider


class OfferCases(Cases):
    """Offers are complete, priced and match the query."""

    async def test_offers_are_complete(self, rig: Rig, provider: Provider) -> None:
        offers = await provider.offers(rig.gpu)
        assert offers
        for offer in offers:
            assert offer.provider == provider.name
            assert offer.gpus == rig.gpu.gpus
            assert offer.gpu == rig.gpu.gpu or offer.gpu.startswith(f"{rig.gpu.gpu}-")
            assert offer.gpu_memory_gib > 0
            assert offer.usd_per_hour > 0
            assert offer.region and offer.instance_type
            assert offer.vcpus > 0 and offer.memory_mib > 1024
            assert offer.price_as_of is not None and offer.price_as_of.tzinfo is not None

    async def test_offers_have_unique_keys(self, provider: Provider) -> None:
        keys = [offer.key for offer in await provider.offers(OfferQuery())]
        assert len(keys) == len(set(keys))

    async def test_offers_match_the_count_of_gpus(self, provider: Provider) -> None:
        everything = await provider.offers(OfferQuery())
        counts = {offer.gpus for offer in everything}
        assert len(counts) > 1, "the stand-in has types with several GPUs"
        for count in counts:
            wanted = {offer.key for offer in everything if offer.gpus == count}
            assert {offer.key for offer in await provider.offers(OfferQuery(gpus=count))} == wanted
        assert not await provider.offers(OfferQuery(gpus=max(counts) + 1))

    async def test_offers_of_an_exact_model_leave_others_out(self, rig: Rig, provider: Provider) -> None:
        model = (await provider.offers(rig.gpu))[0].gpu
        assert {offer.gpu for offer in await provider.offers(OfferQuery(gpu=model))} == {model}
        part = model[:2]
        assert all(offer.gpu.startswith(f"{part}-") for offer in await provider.offers(OfferQuery(gpu=part)))

    async def test_no_spot_offers_unless_the_cloud_has_spot(self, provider: Provider) -> None:
        spot = await provider.offers(OfferQuery(spot=True))
        assert all(offer.spot for offer in spot)
        assert bool(spot) is provider.capabilities.spot

    async def test_offers_never_call_a_full_place_free(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        rig.set_capacity(offer, 0)
        again = {found.key: found.available for found in await provider.offers(rig.gpu)}
        assert again.get(offer.key) is not True
