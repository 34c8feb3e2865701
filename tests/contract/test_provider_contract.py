"""What every adapter must do, over real HTTP against its cloud's stand-in.

A new adapter is one more entry of `rigs.RIGS`; nothing here names a cloud.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshd.contract.faults import Kind, When
from meshd.errors import (
    AuthFailed,
    ConfigError,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
    Uncertain,
)
from meshd.provider_api import Instance, InstanceId, InstanceState, Offer, OfferQuery, Provider
from tests.contract.rigs import CLUSTER, GPU, RIGS, USER_DATA, Rig, build, launched, request, running, strike

TOKEN = "lab-h100-1-k7q2mz"


@pytest.fixture(params=list(RIGS))
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        yield await build(request.param, stack)


@pytest.fixture
async def provider(rig: Rig) -> Provider:
    return rig.make()


@pytest.fixture
async def offer(rig: Rig, provider: Provider) -> Offer:
    return (await provider.offers(GPU))[0]


# --- offers


async def test_offers_are_complete(provider: Provider) -> None:
    offers = await provider.offers(GPU)
    assert offers
    for offer in offers:
        assert offer.provider == provider.name
        assert (offer.gpu, offer.gpus, offer.gpu_memory_gib) in (("h100-sxm", 1, 80), ("h100-pcie", 1, 80))
        assert offer.usd_per_hour > 0
        assert offer.region and offer.instance_type
        assert offer.vcpus > 0 and offer.memory_mib > 1024
        assert offer.price_as_of is not None and offer.price_as_of.tzinfo is not None


async def test_offers_have_unique_keys(provider: Provider) -> None:
    keys = [offer.key for offer in await provider.offers(OfferQuery())]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(("query", "count"), [(OfferQuery(gpu="h100", gpus=8), 8), (OfferQuery(gpus=1), 1)])
async def test_offers_match_the_query(provider: Provider, query: OfferQuery, count: int) -> None:
    offers = await provider.offers(query)
    assert offers
    assert {offer.gpus for offer in offers} == {count}


async def test_offers_of_an_exact_model_leave_others_out(provider: Provider) -> None:
    assert {offer.gpu for offer in await provider.offers(OfferQuery(gpu="h100-sxm"))} == {"h100-sxm"}
    assert not await provider.offers(OfferQuery(gpu="h1"))


async def test_no_spot_offers_unless_the_cloud_has_spot(provider: Provider) -> None:
    spot = await provider.offers(OfferQuery(spot=True))
    assert bool(spot) is provider.capabilities.spot


# --- launch, get, list


async def test_launch_returns_while_the_machine_boots(rig: Rig, provider: Provider, offer: Offer) -> None:
    instance = await provider.launch(request(offer))
    assert instance.state is InstanceState.BOOTING
    assert instance.token == TOKEN
    assert instance.id
    assert instance.region == offer.region
    assert instance.instance_type == offer.instance_type
    assert instance.usd_per_hour == pytest.approx(offer.usd_per_hour)
    assert instance.public_ip == ""
    assert (await provider.get(instance)).state is InstanceState.BOOTING


async def test_machine_comes_up_with_its_address(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    assert instance.state is InstanceState.RUNNING
    (machine,) = rig.ledger.everything()
    assert instance.public_ip == machine.address != ""
    assert instance.usd_per_hour == pytest.approx(machine.usd_per_hour)


async def test_machine_gets_the_user_data_unchanged(rig: Rig, provider: Provider) -> None:
    await launched(rig, provider)
    (machine,) = rig.ledger.everything()
    assert machine.user_data == USER_DATA
    assert machine.name == TOKEN
    assert (machine.gpus, machine.gpu_name) == (1, "NVIDIA H100 80GB HBM3")


async def test_machine_carries_name_and_tags(rig: Rig, provider: Provider) -> None:
    await launched(rig, provider)
    (machine,) = rig.ledger.everything()
    assert machine.token == TOKEN
    if not provider.capabilities.tags:
        pytest.skip(f"{rig.name}: the API has no tags; the name is all there is")
    assert machine.tags.items() >= {"meshd-cluster": CLUSTER, "meshd-machine": TOKEN, "meshd-pool": "h100"}.items()


async def test_get_needs_only_id_and_region(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    bare = Instance(provider.name, instance.id, "", InstanceState.UNKNOWN, region=instance.region)
    assert (await provider.get(bare)) == instance


async def test_list_and_get_tell_the_same(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    assert list(await provider.list()) == [instance]


async def test_list_is_empty_at_first(provider: Provider) -> None:
    assert list(await provider.list()) == []


async def test_list_shows_all_machines_of_all_regions(rig: Rig, provider: Provider) -> None:
    offers = await provider.offers(GPU)
    by_region = list({offer.region: offer for offer in offers}.values())[:2]
    tokens = [f"lab-h100-{index}-abcdef" for index in range(6)]
    for index, token in enumerate(tokens):
        await provider.launch(request(by_region[index % len(by_region)], token))
    found = {instance.token: instance.region for instance in await provider.list()}
    assert sorted(found) == tokens
    assert set(found.values()) == {offer.region for offer in by_region}


async def test_list_shows_only_this_cluster(rig: Rig, provider: Provider) -> None:
    other = rig.make("other")
    offer = (await other.offers(GPU))[0]
    await other.launch(replace(request(offer, "other-h100-1-abcdef"), cluster="other", tags={}))
    assert list(await provider.list()) == []
    assert [instance.token for instance in await other.list()] == ["other-h100-1-abcdef"]


async def test_a_name_alone_makes_no_machine_ours(rig: Rig, provider: Provider) -> None:
    if not provider.capabilities.tags:
        pytest.skip(f"{rig.name}: the API has no tags; the name is all there is")
    other = rig.make("other")
    offer = (await other.offers(GPU))[0]
    await other.launch(replace(request(offer, "lab-h100-9-abcdef"), cluster="other", tags={}))
    assert list(await provider.list()) == []


async def test_list_lets_a_restarted_daemon_find_its_machines(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    again = rig.make()
    assert list(await again.list()) == [instance]


async def test_different_names_make_different_machines_at_the_same_time(
    rig: Rig, provider: Provider, offer: Offer
) -> None:
    made = await asyncio.gather(*(provider.launch(request(offer, f"lab-h100-{n}-abcdef")) for n in range(5)))
    assert len({instance.id for instance in made}) == 5
    assert len(rig.ledger.everything()) == 5


async def test_same_name_makes_one_machine(rig: Rig, provider: Provider, offer: Offer) -> None:
    if not provider.capabilities.idempotent_launch:
        pytest.skip(f"{rig.name}: the API takes no idempotency token; meshd lists by name instead")
    first = await provider.launch(request(offer))
    second = await rig.make().launch(request(offer))
    assert first.id == second.id
    assert len(rig.ledger.everything()) == 1


async def test_same_name_with_other_user_data_adopts_the_first_machine(
    rig: Rig, provider: Provider, offer: Offer
) -> None:
    if not provider.capabilities.idempotent_launch:
        pytest.skip(f"{rig.name}: the API takes no idempotency token; meshd lists by name instead")
    first = await provider.launch(request(offer))
    second = await provider.launch(request(offer, user_data="#!/bin/sh\n# another join token\n"))
    assert (first.id, first.token) == (second.id, second.token)
    assert len(rig.ledger.everything()) == 1


async def test_name_of_an_ended_machine_makes_no_second_one(rig: Rig, provider: Provider, offer: Offer) -> None:
    if not provider.capabilities.idempotent_launch:
        pytest.skip(f"{rig.name}: the API takes no idempotency token; meshd never uses a name twice")
    first = await provider.launch(request(offer))
    await provider.terminate(first)
    rig.clock.advance(60)
    second = await provider.launch(request(offer))
    assert (second.id, second.state) == (first.id, InstanceState.GONE)
    assert len(rig.ledger.everything()) == 1


# --- get of what is not there


async def test_get_of_an_unknown_machine_is_not_found(rig: Rig, provider: Provider) -> None:
    instance = await launched(rig, provider)
    await provider.terminate(instance)
    rig.clock.advance(3 * 3600)
    with pytest.raises(NotFound):
        await provider.get(instance)


async def test_denied_fresh_machine_is_not_taken_for_gone(rig: Rig, provider: Provider) -> None:
    strike(rig, Kind.FRESH_NOT_FOUND, seconds=60)
    instance = await launched(rig, provider)
    with pytest.raises(Transient):
        await provider.get(instance)
    rig.clock.advance(61)
    assert (await provider.get(instance)).state is InstanceState.RUNNING


async def test_denied_fresh_machine_is_not_taken_for_gone_after_a_restart(rig: Rig, provider: Provider) -> None:
    strike(rig, Kind.FRESH_NOT_FOUND, seconds=60)
    instance = await launched(rig, provider)
    bare = Instance(provider.name, instance.id, "", InstanceState.UNKNOWN, region=instance.region)
    with pytest.raises(Transient):
        await rig.make().get(bare)


async def test_denied_fresh_machine_is_not_taken_for_terminated(rig: Rig, provider: Provider) -> None:
    strike(rig, Kind.FRESH_NOT_FOUND, seconds=60)
    instance = await launched(rig, provider)
    with pytest.raises(Transient):
        await provider.terminate(instance)
    rig.clock.advance(61)
    await provider.terminate(instance)
    rig.clock.advance(60)
    assert (await provider.get(instance)).state is InstanceState.GONE


async def test_lists_may_lag(rig: Rig, provider: Provider) -> None:
    strike(rig, Kind.LIST_LAG, seconds=45)
    instance = await launched(rig, provider)
    assert list(await provider.list()) == []
    rig.clock.advance(46)
    assert [found.id for found in await provider.list()] == [instance.id]


# --- terminate


async def test_terminate_is_accepted_and_then_done(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    await provider.terminate(instance)
    assert (await provider.get(instance)).state is InstanceState.TERMINATING
    assert rig.hypervisor.alive(TOKEN)
    rig.clock.advance(21)
    assert (await provider.get(instance)).state is InstanceState.GONE
    await rig.server.host.settle()
    assert not rig.hypervisor.alive(TOKEN)


async def test_terminate_of_a_booting_machine(rig: Rig, provider: Provider) -> None:
    instance = await launched(rig, provider)
    await provider.terminate(instance)
    rig.clock.advance(60)
    assert (await provider.get(instance)).state is InstanceState.GONE


async def test_terminate_can_be_repeated(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    for _ in range(3):
        await provider.terminate(instance)
    rig.clock.advance(21)
    await provider.terminate(instance)
    assert (await provider.get(instance)).state is InstanceState.GONE


async def test_terminate_of_a_forgotten_machine_says_not_found_or_nothing(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    await provider.terminate(instance)
    rig.clock.advance(3 * 3600)
    with suppress(NotFound):
        await provider.terminate(instance)


async def test_terminate_of_one_leaves_the_others(rig: Rig, provider: Provider) -> None:
    first = await running(rig, provider, "lab-h100-1-abcdef")
    second = await running(rig, provider, "lab-h100-2-abcdef")
    await provider.terminate(first)
    rig.clock.advance(60)
    assert (await provider.get(second)).state is InstanceState.RUNNING


async def test_terminate_that_never_ends_is_never_called_gone(rig: Rig, provider: Provider) -> None:
    strike(rig, Kind.NEVER_ENDS)
    instance = await running(rig, provider)
    await provider.terminate(instance)
    rig.clock.advance(24 * 3600)
    await provider.terminate(instance)
    assert (await provider.get(instance)).state is InstanceState.TERMINATING
    assert [found.state for found in await provider.list()] == [InstanceState.TERMINATING]


# --- refusals


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Kind.NO_CAPACITY, NoCapacity),
        (Kind.QUOTA, QuotaExceeded),
        (Kind.THROTTLED, RateLimited),
        (Kind.AUTH, AuthFailed),
        (Kind.INVALID, InvalidRequest),
    ],
)
async def test_refused_launch(
    rig: Rig, provider: Provider, offer: Offer, kind: Kind, error: type[ProviderError]
) -> None:
    strike(rig, kind, "launch")
    with pytest.raises(error) as caught:
        await provider.launch(request(offer))
    assert type(caught.value) is error
    assert (caught.value.provider, caught.value.operation) == (provider.name, "launch")
    assert caught.value.vendor_text
    assert rig.ledger.everything() == []


async def test_refused_launch_is_tried_once(rig: Rig, provider: Provider, offer: Offer) -> None:
    strike(rig, Kind.NO_CAPACITY, "launch", when=When.ALWAYS)
    with pytest.raises(NoCapacity):
        await provider.launch(request(offer))
    assert rig.faults.seen("launch") == 1


async def test_full_region_has_no_capacity_until_one_ends(rig: Rig, provider: Provider, offer: Offer) -> None:
    rig.ledger.set_room(offer.instance_type, offer.region, 1)
    first = await provider.launch(request(offer, "lab-h100-1-abcdef"))
    with pytest.raises(NoCapacity):
        await provider.launch(request(offer, "lab-h100-2-abcdef"))
    await provider.terminate(first)
    rig.clock.advance(60)
    assert (await provider.get(first)).state is InstanceState.GONE
    await provider.launch(request(offer, "lab-h100-3-abcdef"))


async def test_offers_never_call_a_full_region_free(rig: Rig, provider: Provider, offer: Offer) -> None:
    rig.ledger.set_room(offer.instance_type, offer.region, 0)
    again = {found.key: found.available for found in await provider.offers(GPU)}
    assert again.get(offer.key) is not True


async def test_rate_limit_tells_how_long(rig: Rig, provider: Provider) -> None:
    strike(rig, Kind.THROTTLED, "list", seconds=7)
    with pytest.raises(RateLimited) as caught:
        await provider.list()
    assert caught.value.retry_after_s == 7
    strike(rig, Kind.THROTTLED, "list")
    with pytest.raises(RateLimited) as caught:
        await provider.list()
    assert caught.value.retry_after_s is None


async def test_too_much_user_data_is_refused_unsent(rig: Rig, provider: Provider, offer: Offer) -> None:
    data = "#" * (provider.capabilities.user_data_max_b + 1)
    with pytest.raises(InvalidRequest):
        await provider.launch(request(offer, user_data=data))
    assert rig.faults.seen("launch") == 0


async def test_as_much_user_data_as_promised_is_taken(rig: Rig, provider: Provider, offer: Offer) -> None:
    data = "#" * provider.capabilities.user_data_max_b
    await provider.launch(request(offer, user_data=data))
    (machine,) = rig.ledger.everything()
    assert machine.user_data == data


# --- doubt


@pytest.mark.parametrize("kind", [Kind.ERROR_BEFORE, Kind.CUT_BEFORE, Kind.HTML])
async def test_unclear_launch_without_effect(rig: Rig, provider: Provider, offer: Offer, kind: Kind) -> None:
    strike(rig, kind, "launch")
    with pytest.raises(Uncertain):
        await provider.launch(request(offer))
    assert list(await provider.list()) == []


@pytest.mark.parametrize("kind", [Kind.ERROR_AFTER, Kind.CUT_AFTER, Kind.HTML_AFTER])
async def test_unclear_launch_with_effect_is_found_by_name(
    rig: Rig, provider: Provider, offer: Offer, kind: Kind
) -> None:
    strike(rig, kind, "launch")
    with pytest.raises(Uncertain):
        await provider.launch(request(offer))
    assert rig.faults.seen("launch") == 1
    assert [found.token for found in await provider.list()] == [TOKEN]


async def test_late_launch_is_uncertain_and_found_by_name(rig: Rig, offer: Offer) -> None:
    strike(rig, Kind.SLOW, "launch", seconds=30)
    provider = rig.make(launch_timeout_s=0.5)
    await provider.list()
    with pytest.raises(Uncertain):
        await provider.launch(request(offer))
    assert [found.token for found in await provider.list()] == [TOKEN]


async def test_repeated_launch_after_doubt(rig: Rig, provider: Provider, offer: Offer) -> None:
    if not provider.capabilities.idempotent_launch:
        pytest.skip(f"{rig.name}: the API takes no idempotency token; meshd lists by name instead")
    strike(rig, Kind.CUT_AFTER, "launch")
    with pytest.raises(Uncertain):
        await provider.launch(request(offer))
    again = await provider.launch(request(offer))
    assert [found.id for found in await provider.list()] == [again.id]


async def test_two_machines_of_one_name_are_both_listed(rig: Rig, provider: Provider) -> None:
    strike(rig, Kind.DUPLICATE)
    await launched(rig, provider)
    assert [found.token for found in await provider.list()] == [TOKEN, TOKEN]


@pytest.mark.parametrize("kind", [Kind.ERROR_BEFORE, Kind.CUT_BEFORE, Kind.HTML, Kind.HTML_AFTER])
@pytest.mark.parametrize("operation", ["list", "get", "offers"])
async def test_failed_read_is_transient(rig: Rig, provider: Provider, operation: str, kind: Kind) -> None:
    instance = Instance(provider.name, InstanceId("i-0123456789abcdef0"), "", InstanceState.UNKNOWN, "us-east-1")
    if operation == "get":
        instance = await launched(rig, provider)
        rig.clock.advance(600)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "list": lambda: provider.list(),
        "get": lambda: provider.get(instance),
        "offers": lambda: provider.offers(GPU),
    }
    if operation == "offers":
        provider = rig.make()
    strike(rig, kind, operation, when=When.ALWAYS)
    with pytest.raises(Transient):
        await calls[operation]()


async def test_late_list_is_transient_and_tells_nothing(rig: Rig) -> None:
    strike(rig, Kind.SLOW, "list", seconds=30)
    provider = rig.make(call_timeout_s=0.3)
    with pytest.raises(Transient):
        await provider.list()


@pytest.mark.parametrize("kind", [Kind.ERROR_AFTER, Kind.CUT_AFTER, Kind.HTML_AFTER])
async def test_unclear_terminate_is_uncertain_and_can_be_repeated(rig: Rig, provider: Provider, kind: Kind) -> None:
    instance = await running(rig, provider)
    strike(rig, kind, "terminate")
    with pytest.raises(Uncertain):
        await provider.terminate(instance)
    await provider.terminate(instance)
    rig.clock.advance(21)
    assert (await provider.get(instance)).state is InstanceState.GONE


async def test_nobody_there_is_transient_even_for_launch(rig: Rig, offer: Offer) -> None:
    provider = rig.unreachable()
    with pytest.raises(Transient):
        await provider.list()
    with pytest.raises(Transient):
        await provider.launch(request(offer))


# --- odd answers and odd lives


async def test_unknown_state_is_unknown_and_not_gone(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    strike(rig, Kind.UNKNOWN_STATE, when=When.ALWAYS)
    found = await provider.get(instance)
    assert found.state is InstanceState.UNKNOWN
    assert found.vendor_state
    assert [listed.state for listed in await provider.list()] == [InstanceState.UNKNOWN]


async def test_unknown_fields_do_no_harm(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    strike(rig, Kind.UNKNOWN_FIELDS, when=When.ALWAYS)
    assert await provider.get(instance) == instance
    assert list(await provider.list()) == [instance]


async def test_machine_that_never_boots_stays_booting(rig: Rig, provider: Provider) -> None:
    strike(rig, Kind.NEVER_BOOTS)
    instance = await launched(rig, provider)
    rig.clock.advance(7200)
    assert (await provider.get(instance)).state is InstanceState.BOOTING
    await provider.terminate(instance)
    rig.clock.advance(21)
    assert (await provider.get(instance)).state is InstanceState.GONE


async def test_machine_may_run_without_an_address(rig: Rig, provider: Provider) -> None:
    strike(rig, Kind.NO_ADDRESS)
    instance = await running(rig, provider)
    assert (instance.state, instance.public_ip) == (InstanceState.RUNNING, "")


async def test_machine_that_dies_is_gone_with_the_clouds_reason(rig: Rig, provider: Provider) -> None:
    strike(rig, Kind.DIES, seconds=300)
    instance = await running(rig, provider)
    rig.clock.advance(300)
    found = await provider.get(instance)
    assert found.state is InstanceState.GONE
    assert found.reason


async def test_machine_that_powers_itself_off(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    await rig.hypervisor.destroy(TOKEN)
    found = await provider.get(instance)
    ended = found.state is InstanceState.GONE
    assert ended is provider.capabilities.ends_itself
    assert found.state is not InstanceState.RUNNING


async def test_machines_cost_until_they_have_ended(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    rig.clock.advance(3600 - 31)
    await provider.terminate(instance)
    rig.clock.advance(20)
    assert (await provider.get(instance)).state is InstanceState.GONE
    rig.clock.advance(7200)
    (machine,) = rig.ledger.everything()
    assert machine.cost_usd(rig.clock.now()) == pytest.approx(machine.usd_per_hour * 3620 / 3600)


# --- credentials, settings, secrets


async def test_check_says_what_the_credentials_belong_to(provider: Provider) -> None:
    assert await provider.check()


async def test_check_with_a_bad_credential(rig: Rig, provider: Provider) -> None:
    for operation in ("check", "list"):
        strike(rig, Kind.AUTH, operation)
    with pytest.raises(AuthFailed):
        await provider.check()


async def test_check_names_the_missing_permission(rig: Rig, provider: Provider) -> None:
    if not rig.permissions:
        pytest.skip(f"{rig.name}: a key may do everything")
    for permission in rig.permissions:
        strike(rig, Kind.DENIED, permission)
        with pytest.raises(AuthFailed) as caught:
            await provider.check()
        assert permission in caught.value.text
        assert not any(f"{other}," in f"{caught.value.text}," for other in rig.permissions if other != permission)
        assert len(caught.value.text) < 500
        rig.faults.clear()
    assert await provider.check()


async def test_check_names_all_that_are_missing_at_once(rig: Rig, provider: Provider) -> None:
    if not rig.permissions:
        pytest.skip(f"{rig.name}: a key may do everything")
    for permission in rig.permissions[:2]:
        strike(rig, Kind.DENIED, permission)
    with pytest.raises(AuthFailed) as caught:
        await provider.check()
    assert all(permission in caught.value.text for permission in rig.permissions[:2])


async def test_check_makes_and_ends_nothing(rig: Rig, provider: Provider) -> None:
    instance = await running(rig, provider)
    await provider.check()
    assert [machine.token for machine in rig.ledger.everything()] == [instance.token]
    assert (await provider.get(instance)).state is InstanceState.RUNNING


async def test_settings_are_refused_with_one_line_per_problem(rig: Rig) -> None:
    with pytest.raises(ConfigError) as caught:
        rig.make(no_such_key=1, call_timeout_s=-1)
    assert len(caught.value.problems) == 2
    assert "no_such_key: unknown key" in caught.value.problems
    assert not any(secret in str(caught.value) for secret in rig.secrets)


async def test_missing_secret_file_is_named(rig: Rig, tmp_path: Path) -> None:
    key = {"aws": "secret_access_key", "lambda": "api_key", "gce": "service_account"}.get(rig.name, "api_key")
    settings: dict[str, Any] = {key: None, f"{key}_file": tmp_path / "no-such-file"}
    with pytest.raises(ConfigError, match="no-such-file"):
        rig.make(CLUSTER, **settings)


async def test_secret_from_a_file(rig: Rig, tmp_path: Path) -> None:
    key = {"aws": "secret_access_key", "lambda": "api_key", "gce": "service_account"}.get(rig.name, "api_key")
    (tmp_path / "key").write_text(f"{rig.secrets[0]}\n")
    settings: dict[str, Any] = {key: None, f"{key}_file": tmp_path / "key"}
    provider = rig.make(CLUSTER, **settings)
    assert list(await provider.list()) == []


@pytest.mark.parametrize("kind", [Kind.INVALID, Kind.ERROR_AFTER, Kind.CUT_AFTER, Kind.HTML_AFTER, Kind.AUTH])
async def test_no_secret_in_errors(rig: Rig, provider: Provider, offer: Offer, kind: Kind) -> None:
    strike(rig, kind, "launch")
    with pytest.raises(ProviderError) as caught:
        await provider.launch(request(offer))
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(vars(caught.value))
    assert not any(secret in shown for secret in rig.secrets)


async def test_no_secret_in_what_can_be_printed(rig: Rig, provider: Provider, offer: Offer) -> None:
    instance = await provider.launch(request(offer))
    shown = repr(provider) + repr(vars(provider)) + repr(instance) + repr(request(offer))
    assert not any(secret in shown for secret in rig.secrets)


async def test_closing_twice_does_no_harm(provider: Provider) -> None:
    await provider.list()
    await provider.aclose()
    await provider.aclose()


async def test_capabilities_are_usable(provider: Provider) -> None:
    capabilities = provider.capabilities
    assert capabilities.user_data_max_b >= 8192
    assert capabilities.launch_spacing_s >= 0


async def test_without_tags_only_names_of_the_clusters_form_are_ours(rig: Rig, provider: Provider) -> None:
    if provider.capabilities.tags:
        pytest.skip(f"{rig.name}: machines are known by their tags")
    other = rig.make("other")
    offer = (await other.offers(GPU))[0]
    for name in ("lab", "lab-h100", "lab-notes", "lab-ubuntu-22-04", "mylab-h100-1-abcdef", "labs-h100-1-abcdef"):
        await other.launch(replace(request(offer, name), cluster="other"))
    assert list(await provider.list()) == []
