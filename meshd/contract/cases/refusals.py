"""What a cloud refuses, and in which error."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from meshd.contract.cases.base import Cases, kinds
from meshd.contract.faults import Kind, When
from meshd.contract.rig import Rig
from meshd.contract.steps import request, running
from meshd.errors import AuthFailed, InvalidRequest, NoCapacity, ProviderError, QuotaExceeded, RateLimited
from meshd.provider_api import Instance, InstanceState, Offer, Provider

ERRORS: dict[Kind, type[ProviderError]] = {
    Kind.NO_CAPACITY: NoCapacity,
    Kind.QUOTA: QuotaExceeded,
    Kind.THROTTLED: RateLimited,
    Kind.AUTH: AuthFailed,
    Kind.EXPIRED: AuthFailed,
    Kind.INVALID: InvalidRequest,
}


class RefusalCases(Cases):
    """A refusal is exactly one leaf of ProviderError, with the cloud's words, and is not asked again."""

    @kinds(*ERRORS)
    async def test_refused_launch(self, rig: Rig, provider: Provider, offer: Offer, kind: Kind) -> None:
        rig.strike(kind, "launch", when=When.ALWAYS)
        with pytest.raises(ProviderError) as caught:
            await provider.launch(request(offer))
        assert type(caught.value) is ERRORS[kind]
        assert (caught.value.provider, caught.value.operation) == (provider.name, "launch")
        assert caught.value.vendor_text
        assert rig.machines() == []

    async def test_refused_launch_is_tried_once(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        rig.strike(Kind.NO_CAPACITY, "launch", when=When.ALWAYS)
        with pytest.raises(NoCapacity):
            await provider.launch(request(offer))
        assert rig.faults.seen("launch") == 1

    async def test_full_place_has_no_capacity_until_one_ends(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        rig.set_room(offer, 1)
        first = await provider.launch(request(offer, "lab-h100-1-abcdef"))
        with pytest.raises(NoCapacity):
            await provider.launch(request(offer, "lab-h100-2-abcdef"))
        await provider.terminate(first)
        rig.advance(rig.end_s * 3)
        assert (await provider.get(first)).state is InstanceState.GONE
        await provider.launch(request(offer, "lab-h100-3-abcdef"))

    @pytest.mark.parametrize("operation", ["launch", "list", "get", "terminate"])
    async def test_rate_limit_tells_how_long_when_the_cloud_does(
        self, rig: Rig, provider: Provider, offer: Offer, operation: str
    ) -> None:
        instance = await running(rig, provider)
        for seconds, told_s in ((7, 7), (0, None)):
            rig.strike(Kind.THROTTLED, operation, seconds=seconds)
            with pytest.raises(RateLimited) as caught:
                await _call(provider, operation, offer, instance)
            assert caught.value.retry_after_s == told_s
        assert len(rig.machines()) == 1

    @kinds(Kind.AUTH, Kind.EXPIRED)
    @pytest.mark.parametrize("operation", ["list", "get", "terminate"])
    async def test_bad_credential_is_no_news_of_machines(
        self, rig: Rig, provider: Provider, offer: Offer, operation: str, kind: Kind
    ) -> None:
        instance = await running(rig, provider)
        rig.strike(kind, when=When.ALWAYS)
        with pytest.raises(AuthFailed):
            await _call(provider, operation, offer, instance)
        rig.clear()
        assert await provider.get(instance) == instance

    @kinds(Kind.AUTH, Kind.EXPIRED)
    async def test_check_finds_a_bad_credential(self, rig: Rig, provider: Provider, kind: Kind) -> None:
        rig.strike(kind, when=When.ALWAYS)
        with pytest.raises(AuthFailed):
            await provider.check()

    async def test_check_says_what_the_credentials_belong_to(self, provider: Provider) -> None:
        assert await provider.check()

    async def test_check_names_the_missing_permission(self, rig: Rig, provider: Provider) -> None:
        for permission in _permissions(rig):
            rig.strike(Kind.DENIED, permission)
            with pytest.raises(AuthFailed) as caught:
                await provider.check()
            assert permission in caught.value.text
            assert not any(f"{other}," in f"{caught.value.text}," for other in rig.permissions if other != permission)
            assert len(caught.value.text) < 500
            rig.clear()
        assert await provider.check()

    async def test_check_names_all_that_are_missing_at_once(self, rig: Rig, provider: Provider) -> None:
        for permission in _permissions(rig)[:2]:
            rig.strike(Kind.DENIED, permission)
        with pytest.raises(AuthFailed) as caught:
            await provider.check()
        assert all(permission in caught.value.text for permission in rig.permissions[:2])

    async def test_check_makes_and_ends_nothing(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        await provider.check()
        assert [machine.token for machine in rig.machines()] == [instance.token]
        assert (await provider.get(instance)).state is InstanceState.RUNNING

    async def test_too_much_user_data_is_refused_unsent(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        data = "#" * (provider.capabilities.user_data_max_b + 1)
        with pytest.raises(InvalidRequest):
            await provider.launch(request(offer, user_data=data))
        assert rig.faults.seen("launch") == 0


def _permissions(rig: Rig) -> tuple[str, ...]:
    if not rig.permissions:
        rig.strike(Kind.DENIED)  # not covered, and the rig says why
    assert rig.permissions, "the rig names the permissions, or says in `cannot` why a credential lacks none"
    return rig.permissions


def _call(provider: Provider, operation: str, offer: Offer, instance: Instance) -> Awaitable[object]:
    if operation == "launch":
        return provider.launch(request(offer, "lab-h100-9-abcdef"))
    if operation == "list":
        return provider.list()
    return provider.get(instance) if operation == "get" else provider.terminate(instance)
