"""EC2's spot machines: prices, refusals and interruptions."""

from __future__ import annotations

import re

import pytest

from meshd.contract.faults import FaultKind
from meshd.contract.steps import TOKEN, request
from meshd.errors import NoCapacity, ProviderError, QuotaExceeded
from meshd.provider_api import InstanceState, Offer, Provider
from tests.contract.rigs import AwsRig, h100_offers


async def _cheapest(provider: Provider) -> Offer:
    return min(await h100_offers(provider, spot=True), key=lambda offer: offer.usd_per_hour)


async def test_spot_prices_differ_by_zone_and_are_below_the_on_demand_price() -> None:
    async with AwsRig() as rig:
        provider = rig.make()
        on_demand = {(o.zone, o.instance_type): o.usd_per_hour for o in await h100_offers(provider, spot=False)}
        spot = {(o.zone, o.instance_type): o.usd_per_hour for o in await h100_offers(provider, spot=True)}
    assert len(set(spot.values())) > 1
    assert set(spot) <= set(on_demand)
    # The older price and the price for Windows, both above half of the on-demand price, are not used.
    assert all(0.25 < price / on_demand[where] < 0.6 for where, price in spot.items())


@pytest.mark.parametrize(
    ("fault", "error", "code"),
    [
        (FaultKind.NO_CAPACITY, NoCapacity, "InsufficientInstanceCapacity"),
        (FaultKind.QUOTA, QuotaExceeded, "MaxSpotInstanceCountExceeded"),
    ],
)
async def test_a_refused_spot_request_says_why(fault: FaultKind, error: type[ProviderError], code: str) -> None:
    async with AwsRig() as rig:
        provider = rig.make()
        offer = await _cheapest(provider)
        rig.inject(fault, "launch")
        with pytest.raises(error) as caught:
            await provider.launch(request(offer))
        assert re.match(rf"{code}: .*[Ss]pot", caught.value.text)
        assert not rig.machines()


async def test_a_maximum_price_below_the_market_is_no_capacity_and_one_above_is_not_paid() -> None:
    async with AwsRig() as rig:
        offer = await _cheapest(rig.make())
        stingy = rig.make(spot_max_usd_per_hour=round(offer.usd_per_hour - 0.01, 4))
        with pytest.raises(NoCapacity) as caught:
            await stingy.launch(request(offer))
        assert re.match(rf"SpotMaxPriceTooLow: .*{offer.usd_per_hour}", caught.value.text)
        assert not rig.machines()
        await rig.make(spot_max_usd_per_hour=offer.usd_per_hour * 2).launch(request(offer))
        assert [machine.usd_per_hour for machine in rig.machines()] == [offer.usd_per_hour]


async def test_an_interrupted_machine_is_preempted_until_it_has_ended() -> None:
    async with AwsRig() as rig:
        provider = rig.make()
        made = await provider.launch(request(await _cheapest(provider)))
        await rig.settle()
        rig.advance(rig.boot_s + 1)
        await rig.preempt(TOKEN)
        seen = await provider.get(made)
        assert (seen.state, seen.vendor_state) == (InstanceState.PREEMPTED, "shutting-down")
        assert seen.reason.startswith("Server.SpotInstanceTermination")
        rig.advance(rig.end_s + 1)
        ended = await provider.get(made)
        assert ended.state is InstanceState.GONE
        assert ended.reason == seen.reason
