"""How machines start, end, or do not end; spot machines; and answers with unexpected content."""

from __future__ import annotations

from contextlib import suppress

import pytest

from meshd.contract.cases.base import Cases, kinds
from meshd.contract.faults import FaultKind, When
from meshd.contract.rig import Rig, does_not_apply
from meshd.contract.steps import TOKEN, ended, launched, only_machine, rentable, request, running
from meshd.errors import NotFound
from meshd.provider_api import InstanceState, Offer, Provider


class TerminateCases(Cases):
    """`terminate` can be repeated, and no machine is called gone before it is."""

    async def test_terminate_is_accepted_and_then_done(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        await provider.terminate(instance)
        assert (await provider.get(instance)).state is InstanceState.TERMINATING
        assert only_machine(rig).alive
        assert (await ended(rig, provider, instance)).state is InstanceState.GONE
        assert not only_machine(rig).alive

    async def test_terminate_of_a_booting_machine(self, rig: Rig, provider: Provider) -> None:
        instance = await launched(rig, provider)
        await provider.terminate(instance)
        assert (await ended(rig, provider, instance)).state is InstanceState.GONE

    async def test_terminate_can_be_repeated(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        for _ in range(3):
            await provider.terminate(instance)
        rig.advance(rig.end_s + 1)
        with suppress(NotFound):
            await provider.terminate(instance)
        assert (await provider.get(instance)).state is InstanceState.GONE

    async def test_terminate_of_a_forgotten_machine_says_not_found_or_nothing(
        self, rig: Rig, provider: Provider
    ) -> None:
        instance = await running(rig, provider)
        await provider.terminate(instance)
        rig.advance(rig.keep_s * 3)
        with suppress(NotFound):
            await provider.terminate(instance)

    async def test_terminate_of_one_leaves_the_others(self, rig: Rig, provider: Provider) -> None:
        first = await running(rig, provider, "lab-h100-1-abcdef")
        second = await running(rig, provider, "lab-h100-2-abcdef")
        await provider.terminate(first)
        rig.advance(rig.end_s * 3)
        assert (await provider.get(second)).state is InstanceState.RUNNING

    async def test_terminate_that_never_ends_is_never_called_gone(self, rig: Rig, provider: Provider) -> None:
        rig.inject(FaultKind.NEVER_ENDS)
        instance = await running(rig, provider)
        await provider.terminate(instance)
        rig.advance(24 * 3600)
        await provider.terminate(instance)
        assert (await provider.get(instance)).state is InstanceState.TERMINATING
        assert [found.state for found in await provider.list()] == [InstanceState.TERMINATING]


class LifecycleCases(Cases):
    """The adapter reports what really happened to a machine."""

    async def test_machine_that_never_boots_stays_booting(self, rig: Rig, provider: Provider) -> None:
        rig.inject(FaultKind.NEVER_BOOTS)
        instance = await launched(rig, provider)
        rig.advance(7200)
        assert (await provider.get(instance)).state is InstanceState.BOOTING
        await provider.terminate(instance)
        assert (await ended(rig, provider, instance)).state is InstanceState.GONE

    async def test_machine_may_run_without_an_address(self, rig: Rig, provider: Provider) -> None:
        rig.inject(FaultKind.NO_ADDRESS)
        instance = await running(rig, provider)
        assert (instance.state, instance.public_ip) == (InstanceState.RUNNING, "")

    @pytest.mark.parametrize("age_s", [10, 300])
    async def test_machine_that_dies_is_gone_with_the_clouds_reason(
        self, rig: Rig, provider: Provider, age_s: float
    ) -> None:
        rig.inject(FaultKind.DIES, seconds=age_s)
        instance = await launched(rig, provider)
        rig.advance(age_s + 1)
        found = await provider.get(instance)
        assert found.state is InstanceState.GONE
        assert found.reason

    async def test_machine_that_powers_itself_off(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        await rig.power_off(TOKEN)
        found = await provider.get(instance)
        assert (found.state is InstanceState.GONE) is provider.capabilities.ends_itself
        assert found.state is not InstanceState.RUNNING


class SpotCases(Cases):
    """Spot machines are reported as spot, and a preemption with its reason."""

    async def test_spot_machine_is_rented_at_its_offers_price(self, rig: Rig, provider: Provider) -> None:
        offer = await _spot_offer(rig, provider)
        made = await provider.launch(request(offer))
        await rig.settle()
        rig.advance(rig.boot_s + 1)
        found = await provider.get(made)
        assert (made.spot, found.spot) == (True, True)
        assert (found.instance_type, found.region) == (offer.instance_type, offer.region)
        assert made.usd_per_hour == pytest.approx(offer.usd_per_hour)
        assert only_machine(rig).usd_per_hour == pytest.approx(offer.usd_per_hour)
        assert list(await provider.list()) == [found]
        await provider.terminate(made)
        assert (await ended(rig, provider, made)).state is InstanceState.GONE

    @pytest.mark.parametrize("ready", [False, True])
    async def test_preempted_machine_has_a_reason(self, rig: Rig, provider: Provider, ready: bool) -> None:
        made = await provider.launch(request(await _spot_offer(rig, provider)))
        await rig.settle()
        if ready:
            rig.advance(rig.boot_s + 1)
            assert (await provider.get(made)).state is InstanceState.RUNNING
        await rig.preempt(TOKEN)
        found = await provider.get(made)
        assert found.state in (InstanceState.PREEMPTED, InstanceState.GONE)
        assert found.reason
        with suppress(NotFound):
            await provider.terminate(found)
        assert (await ended(rig, provider, made)).state is InstanceState.GONE
        assert not only_machine(rig).alive


async def _spot_offer(rig: Rig, provider: Provider) -> Offer:
    if not provider.capabilities.spot:
        does_not_apply("the adapter has no spot machines")
    return (await rentable(rig, provider, spot=True))[0]


class UnexpectedAnswerCases(Cases):
    """Unknown states and fields do no harm."""

    async def test_unknown_state_is_unknown_and_not_gone(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        rig.inject(FaultKind.UNKNOWN_STATE, when=When.ALWAYS)
        found = await provider.get(instance)
        assert found.state is InstanceState.UNKNOWN
        assert found.vendor_state
        assert [listed.state for listed in await provider.list()] == [InstanceState.UNKNOWN]

    async def test_regressed_state_is_reported_and_not_gone(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        rig.inject(FaultKind.REGRESSED, "get")
        assert (await provider.get(instance)).state is InstanceState.BOOTING
        rig.inject(FaultKind.REGRESSED, "list", when=When.ALWAYS)  # a listing may be several calls, one for each region
        assert [found.state for found in await provider.list()] == [InstanceState.BOOTING]
        rig.clear()
        assert await provider.get(instance) == instance

    async def test_unknown_fields_do_no_harm(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        rig.inject(FaultKind.UNKNOWN_FIELDS, when=When.ALWAYS)
        assert await provider.get(instance) == instance
        assert list(await provider.list()) == [instance]

    @kinds(FaultKind.UNKNOWN_STATE, FaultKind.UNKNOWN_FIELDS)
    async def test_launch_with_unexpected_content_succeeds(
        self, rig: Rig, provider: Provider, offer: Offer, kind: FaultKind
    ) -> None:
        rig.inject(kind, when=When.ALWAYS)
        made = await provider.launch(request(offer))
        rig.clear()
        assert [found.id for found in await provider.list()] == [made.id]
