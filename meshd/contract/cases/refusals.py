"""Refusals of the cloud, and the error that each becomes."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from meshd.contract.cases.base import Cases, kinds
from meshd.contract.faults import FaultKind, When
from meshd.contract.rig import Rig
from meshd.contract.steps import request, running
from meshd.errors import AuthFailed, InvalidRequest, NoCapacity, ProviderError, QuotaExceeded, RateLimited
from meshd.provider_api import Instance, InstanceState, Offer, Provider

ERRORS: dict[FaultKind, type[ProviderError]] = {
    FaultKind.NO_CAPACITY: NoCapacity,
    FaultKind.QUOTA: QuotaExceeded,
    FaultKind.THROTTLED: RateLimited,
    FaultKind.AUTH: AuthFailed,
    FaultKind.EXPIRED: AuthFailed,
    FaultKind.INVALID: InvalidRequest,
}


class RefusalCases(Cases):
    """A refusal becomes exactly one leaf of ProviderError, keeps the cloud's words, and the call is not repeated."""

    @kinds(*ERRORS)
    async def test_refused_launch(self, rig: Rig, provider: Provider, offer: Offer, kind: FaultKind) -> None:
        rig.inject(kind, "launch", when=When.ALWAYS)
        with pytest.raises(ProviderError) as caught:
            await provider.launch(request(offer))
        assert type(caught.value) is ERRORS[kind]
        assert (caught.value.provider, caught.value.operation) == (provider.name, "launch")
        assert caught.value.vendor_text
        assert rig.machines() == []

    async def test_refused_launch_is_tried_once(self, rig: Rig, provider: Provider, offer: Offer) -> None:
        rig.inject(FaultKind.NO_CAPACITY, "launch", when=When.ALWAYS)
        with pytest.raises(NoCapacity):
            await provider.launch(request(offer))
        assert rig.faults.calls("launch") == 1

    async def test_full_region_has_no_capacity_until_a_machine_ends(
        self, rig: Rig, provider: Provider, offer: Offer
    ) -> None:
        rig.set_capacity(offer, 1)
        first = await provider.launch(request(offer, "lab-h100-1-abcdef"))
        with pytest.raises(NoCapacity):
            await provider.launch(request(offer, "lab-h100-2-abcdef"))
        await provider.terminate(first)
        rig.advance(rig.end_s * 3)
        assert (await provider.get(first)).state is InstanceState.GONE
        await provider.launch(request(offer, "lab-h100-3-abcdef"))

    @pytest.mark.parametrize("operation", ["launch", "list", "get", "terminate"])
    async def test_rate_limit_has_the_clouds_retry_after(
        self, rig: Rig, provider: Provider, offer: Offer, operation: str
    ) -> None:
        instance = await running(rig, provider)
        for seconds, expected_s in ((7, 7), (0, None)):
            rig.inject(FaultKind.THROTTLED, operation, seconds=seconds)
            with pytest.raises(RateLimited) as caught:
                await _call(provider, operation, offer, instance)
            assert caught.value.retry_after_s == expected_s
        assert len(rig.machines()) == 1

    @kinds(FaultKind.AUTH, FaultKind.EXPIRED)
    @pytest.mark.parametrize("operation", ["list", "get", "terminate"])
    async def test_bad_credential_says_nothing_about_machines(
        self, rig: Rig, provider: Provider, offer: Offer, operation: str, kind: FaultKind
    ) -> None:
        instance = await running(rig, provider)
        rig.inject(kind, when=When.ALWAYS)
        with pytest.raises(AuthFailed):
            await _call(provider, operation, offer, instance)
        rig.clear()
        assert await provider.get(instance) == instance

    @kinds(FaultKind.AUTH, FaultKind.EXPIRED)
    async def test_check_finds_a_bad_credential(self, rig: Rig, provider: Provider, kind: FaultKind) -> None:
        rig.inject(kind, when=When.ALWAYS)
        with pytest.raises(AuthFailed):
            await provider.check()

    async def test_check_says_what_the_credentials_belong_to(self, provider: Provider) -> None:
        assert await provider.check()

    async def test_check_names_the_missing_permission(self, rig: Rig, provider: Provider) -> None:
        for permission in _permissions(rig):
            rig.inject(FaultKind.DENIED, permission)
            with pytest.raises(AuthFailed) as caught:
                await provider.check()
            assert permission in caught.value.text
            assert not any(f"{other}," in f"{caught.value.text}," for other in rig.permissions if other != permission)
            assert len(caught.value.text) < 500
            rig.clear()
        assert await provider.check()

    async def test_check_names_all_that_are_missing_at_once(self, rig: Rig, provider: Provider) -> None:
        for permission in _permissions(rig)[:2]:
            rig.inject(FaultKind.DENIED, permission)
        with pytest.raises(AuthFailed) as caught:
            await provider.check()
        assert all(permission in caught.value.text for permission in rig.permissions[:2])

    async def test_check_makes_and_ends_nothing(self, rig: Rig, provider: Provider) -> None:
        instance = await running(rig, provider)
        await provider.check()
        assert [machine.token for machine in rig.machines()] == [instance.token]
        assert (await provider.get(instance)).state is InstanceState.RUNNING


def _permissions(rig: Rig) -> tuple[str, ...]:
    if not rig.permissions:
        rig.inject(FaultKind.DENIED)  # unsupported: ends the case as not covered
    assert rig.permissions, "the rig names the permissions, or says in `unsupported` why none can be missing"
    return rig.permissions


def _call(provider: Provider, operation: str, offer: Offer, instance: Instance) -> Awaitable[object]:
    if operation == "launch":
        return provider.launch(request(offer, "lab-h100-9-abcdef"))
    if operation == "list":
        return provider.list()
    return provider.get(instance) if operation == "get" else provider.terminate(instance)
