"""Lost answers: the adapter does not deny an effect that may have happened, and finds the one that did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from meshd.contract.cases.base import Cases, kinds
from meshd.contract.faults import FaultKind, When
from meshd.contract.rig import Rig, does_not_apply
from meshd.contract.steps import TOKEN, ended, launched, only_machine, rentable, request, running, takes_effect, warmed
from meshd.errors import Transient, Uncertain
from meshd.provider_api import Instance, InstanceId, InstanceState, Offer, Provider

SLOW_S = 30
BEFORE = kinds(FaultKind.ERROR_BEFORE, FaultKind.CUT_BEFORE, FaultKind.HTML)
AFTER = kinds(FaultKind.ERROR_AFTER, FaultKind.CUT_AFTER, FaultKind.HTML_AFTER)


class UnclearLaunchCases(Cases):
    """A launch whose answer is lost raises Uncertain, is sent once, and its machine is found by name."""

    @BEFORE
    async def test_unclear_launch_without_effect(
        self, rig: Rig, provider: Provider, offer: Offer, kind: FaultKind
    ) -> None:
        rig.inject(kind, "launch")
        with pytest.raises(Uncertain):
            await provider.launch(request(offer))
        assert rig.faults.calls("launch") == 1
        assert list(await provider.list()) == []

    @AFTER
    async def test_unclear_launch_with_effect_is_found_by_name(
        self, rig: Rig, provider: Provider, offer: Offer, kind: FaultKind
    ) -> None:
        rig.inject(kind, "launch")
        with pytest.raises(Uncertain):
            await provider.launch(request(offer))
        assert rig.faults.calls("launch") == 1
        assert [found.token for found in await provider.list()] == [TOKEN]

    @pytest.mark.parametrize("status", [502, 503, 504])
    async def test_launch_answered_by_any_5xx_is_uncertain(
        self, rig: Rig, provider: Provider, offer: Offer, status: int
    ) -> None:
        rig.inject(FaultKind.ERROR_AFTER, "launch", status=status)
        with pytest.raises(Uncertain):
            await provider.launch(request(offer))
        assert rig.faults.calls("launch") == 1

    async def test_late_launch_is_uncertain_and_found_by_name(self, rig: Rig, offer: Offer) -> None:
        rig.inject(FaultKind.SLOW, "launch", seconds=SLOW_S)
        provider = await warmed(rig.make(**{rig.launch_timeout: 0.5}))
        with pytest.raises(Uncertain):
            await provider.launch(request(offer))
        await takes_effect(lambda: bool(rig.machines()))
        assert [found.token for found in await provider.list()] == [TOKEN]

    async def test_unclear_launch_missing_from_the_first_lists_is_found_later(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        rig.inject(FaultKind.LIST_LAG, seconds=45)
        rig.inject(FaultKind.CUT_AFTER, "launch")
        with pytest.raises(Uncertain):
            await provider.launch(request(offer))
        assert list(await provider.list()) == []
        rig.advance(46)
        assert [found.token for found in await provider.list()] == [TOKEN]

    async def test_repeated_launch_after_an_unclear_answer(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        if not provider.capabilities.idempotent_launch:
            does_not_apply("the API takes no idempotency token; meshd lists by name instead")
        rig.inject(FaultKind.CUT_AFTER, "launch")
        with pytest.raises(Uncertain):
            await provider.launch(request(offer))
        again = await provider.launch(request(offer))
        assert [found.id for found in await provider.list()] == [again.id]

    async def test_no_connection_is_transient_even_for_launch(self, rig: Rig, offer: Offer) -> None:
        provider = rig.unreachable()
        with pytest.raises(Transient):
            await provider.list()
        with pytest.raises(Transient):
            await provider.launch(request(offer))


class FailedReadCases(Cases):
    """A failed read raises Transient. It says nothing about machines, least of all that there are none."""

    @kinds(FaultKind.ERROR_BEFORE, FaultKind.CUT_BEFORE, FaultKind.HTML, FaultKind.HTML_AFTER)
    @pytest.mark.parametrize("operation", ["list", "get", "offers"])
    async def test_failed_read_is_transient(
        self, rig: Rig, provider: Provider, operation: str, kind: FaultKind
    ) -> None:
        instance = Instance(provider.name, InstanceId("i-0123456789abcdef0"), "", InstanceState.UNKNOWN, "us-east-1")
        if operation == "get":
            instance = await launched(rig, provider)
            rig.advance(600)
        elif operation == "offers":
            provider = rig.make()
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "list": provider.list,
            "get": lambda: provider.get(instance),
            "offers": lambda: rentable(rig, provider),
        }
        rig.inject(kind, operation, when=When.ALWAYS)
        with pytest.raises(Transient):
            await calls[operation]()

    @kinds(FaultKind.ERROR_BEFORE, FaultKind.CUT_AFTER, FaultKind.HTML_AFTER)
    async def test_list_that_fails_once_is_complete_or_fails(
        self, rig: Rig, provider: Provider, kind: FaultKind
    ) -> None:
        """As when one of several regions does not answer. The adapter may repeat a read."""
        instance = await running(rig, provider)
        rig.inject(kind, "list")
        try:
            found = await provider.list()
        except Transient:
            return
        assert list(found) == [instance]

    async def test_list_with_a_failed_page_fails(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        for index in range(3):
            await provider.launch(request(offer, f"lab-h100-{index}-abcdef"))
        rig.inject(FaultKind.PAGE_FAILS, "list", when=When.ALWAYS)
        with pytest.raises(Transient):
            await provider.list()

    async def test_late_list_is_transient(self, rig: Rig) -> None:
        rig.inject(FaultKind.SLOW, "list", seconds=SLOW_S)
        provider = rig.make(**{rig.call_timeout: 0.3})
        with pytest.raises(Transient):
            await provider.list()

    async def test_late_get_is_transient(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        provider = rig.make(**{rig.call_timeout: 0.3})
        rig.inject(FaultKind.SLOW, "get", seconds=SLOW_S, when=When.ALWAYS)
        with pytest.raises(Transient):
            await provider.get(instance)


class UnclearTerminateCases(Cases):
    """A terminate whose answer is lost raises Uncertain and can be repeated."""

    @BEFORE
    async def test_unclear_terminate_without_effect_ends_nothing(
        self, rig: Rig, provider: Provider, kind: FaultKind
    ) -> None:
        instance = await running(rig, provider)
        rig.inject(kind, "terminate")
        with pytest.raises(Uncertain):
            await provider.terminate(instance)
        assert (await ended(rig, provider, instance)).state is InstanceState.RUNNING
        await provider.terminate(instance)
        assert (await ended(rig, provider, instance)).state is InstanceState.GONE

    @AFTER
    async def test_unclear_terminate_can_be_repeated(self, rig: Rig, provider: Provider, kind: FaultKind) -> None:
        instance = await running(rig, provider)
        rig.inject(kind, "terminate")
        with pytest.raises(Uncertain):
            await provider.terminate(instance)
        await provider.terminate(instance)
        assert (await ended(rig, provider, instance)).state is InstanceState.GONE

    async def test_late_terminate_is_uncertain_and_happens(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        impatient = await warmed(rig.make(**{rig.call_timeout: 0.5}))
        rig.inject(FaultKind.SLOW, "terminate", seconds=SLOW_S)
        with pytest.raises(Uncertain):
            await impatient.terminate(instance)

        def has_ended() -> bool:
            rig.advance(rig.end_s + 1)
            return not only_machine(rig).alive

        await takes_effect(has_ended)
