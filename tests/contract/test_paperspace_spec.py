"""Every request that the Paperspace adapter sends and every answer of its stand-in, against a handwritten schema.

The vendor publishes no document. The schema names its sources (`x-origin`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import aiohttp
import pytest
from jsonschema import ValidationError

from deploy.sandbox.clouds.server import CloudServer
from meshd.contract.faults import FaultKind, When
from meshd.contract.steps import USER_DATA, launched, request, running
from meshd.errors import InvalidRequest, NoCapacity, ProviderError, Transient, Uncertain
from meshd.provider_api import Instance, InstanceId, InstanceState, Provider
from tests.contract.recorder import Exchange, OpenApi, Recorder, recording
from tests.contract.rigs import SandboxRig, h100_offers

SPEC = OpenApi("paperspace_handmade.json")
TOKEN = "lab-h100-1-k7q2mz"


@pytest.fixture
async def recorded() -> AsyncIterator[tuple[SandboxRig, Recorder]]:
    async with recording("paperspace") as (rig, recorder):
        yield rig, recorder
        for exchange in recorder.exchanges:
            check_exchange(exchange)


@pytest.fixture
def rig(recorded: tuple[SandboxRig, Recorder]) -> SandboxRig:
    return recorded[0]


@pytest.fixture
def recorder(recorded: tuple[SandboxRig, Recorder]) -> Recorder:
    return recorded[1]


@pytest.fixture
def provider(rig: SandboxRig, recorder: Recorder) -> Provider:
    return rig.make(base_url=recorder.url)


@pytest.fixture
def cloud(rig: SandboxRig) -> CloudServer:
    return rig.server


def check_exchange(exchange: Exchange) -> None:
    described = SPEC.operation(exchange)
    parameters = {one["name"]: one["required"] for one in described["parameters"]}
    assert exchange.query.keys() <= parameters.keys()
    assert {name for name, required in parameters.items() if required} <= exchange.query.keys()
    if "requestBody" in described:
        SPEC.check(described["requestBody"]["content"]["application/json"]["schema"], exchange.sent)
    else:
        assert exchange.sent is None
    answer = described["responses"]["200" if exchange.status == 200 else "default"]
    SPEC.check(answer["content"]["application/json"]["schema"], exchange.answered)


async def test_lifecycle_of_a_machine(rig: SandboxRig, recorder: Recorder, provider: Provider) -> None:
    assert await provider.check() == "team sandbox, at most 20 machines"
    await provider.offers()
    instance = await running(rig, provider)
    await provider.list()
    rig.clock.advance(301)
    await provider.list()
    await provider.terminate(instance)
    await provider.get(instance)
    rig.clock.advance(60)
    assert (await provider.get(instance)).reason == "deactivate: done"
    assert {
        (exchange.method, re.sub("/(ps|ss)[0-9a-f]+", "/ID", exchange.path)) for exchange in recorder.exchanges
    } == {
        ("GET", "/v1/auth/session"),
        ("GET", "/v1/os-templates"),
        ("GET", "/v1/machine-availability"),
        ("POST", "/v1/startup-scripts"),
        ("POST", "/v1/machines"),
        ("GET", "/v1/machines"),
        ("GET", "/v1/machines/ID"),
        ("GET", "/v1/startup-scripts"),
        ("DELETE", "/v1/startup-scripts/ID"),
        ("DELETE", "/v1/machines/ID"),
        ("GET", "/v1/machine-events"),
    }


async def test_launch_orders_no_costly_extras(recorder: Recorder, provider: Provider) -> None:
    offers = {offer.instance_type: offer for offer in await provider.offers()}
    await provider.launch(request(offers["H100x8"]))
    body = next(one.sent for one in recorder.exchanges if (one.method, one.path) == ("POST", "/v1/machines"))
    assert body["templateId"] == "tmlb0008"
    assert (body["publicIpType"], body["enableNvlink"], body["startOnCreate"]) == ("dynamic", True, True)
    assert not any(
        body[key] for key in ("emailPassword", "takeInitialSnapshot", "autoSnapshotEnabled", "autoShutdownEnabled")
    )


async def test_cpu_types_can_be_rented(rig: SandboxRig, recorder: Recorder) -> None:
    provider = rig.make(base_url=recorder.url, machine_types=["C5"], regions=["CA1"])
    (offer,) = await provider.offers()
    assert (offer.gpu, offer.gpus, offer.vcpus, offer.region, offer.available) == ("", 0, 4, "ca1", True)
    await provider.launch(request(offer))
    body = recorder.exchanges[-1].sent
    assert (body["templateId"], body["region"]) == ("tubu0022", "ca1")


@pytest.mark.parametrize(
    "kind", [FaultKind.NO_CAPACITY, FaultKind.QUOTA, FaultKind.AUTH, FaultKind.INVALID, FaultKind.THROTTLED]
)
async def test_refusals_leave_no_script(
    rig: SandboxRig, cloud: CloudServer, provider: Provider, kind: FaultKind
) -> None:
    offer = (await h100_offers(provider))[0]
    rig.inject(kind, "launch")
    with pytest.raises(ProviderError):
        await provider.launch(request(offer))
    assert cloud.paperspace.scripts == {}


async def test_unknown_machine_has_no_events(provider: Provider) -> None:
    with pytest.raises(ProviderError):
        await provider.get(Instance(provider.name, InstanceId("psnone"), "", InstanceState.UNKNOWN))


def test_the_schema_check_can_fail() -> None:
    wrong = Exchange("POST", "/v1/machines", {"name": "x", "user_data": "x"}, 200, {})
    with pytest.raises(ValidationError):
        check_exchange(wrong)


# --- startup scripts


async def test_script_runs_once_and_stays_until_its_machine_has_run_it(
    rig: SandboxRig, cloud: CloudServer, provider: Provider
) -> None:
    await launched(rig, provider)
    (script,) = cloud.paperspace.scripts.values()
    assert (script.name, script.text, script.is_run_once) == (TOKEN, USER_DATA, True)
    for _ in range(6):
        await provider.list()
        assert len(cloud.paperspace.scripts) == 1
        rig.clock.advance(61)
    await provider.list()
    assert cloud.paperspace.scripts == {}


async def test_restarted_daemon_deletes_what_was_left(rig: SandboxRig, cloud: CloudServer, provider: Provider) -> None:
    await running(rig, provider)
    again = rig.make()
    await again.list()
    assert len(cloud.paperspace.scripts) == 1
    rig.clock.advance(301)
    await again.list()
    assert cloud.paperspace.scripts == {}


async def test_script_goes_with_its_machine(rig: SandboxRig, cloud: CloudServer, provider: Provider) -> None:
    instance = await launched(rig, provider)
    await provider.terminate(instance)
    assert cloud.paperspace.scripts == {}


async def test_restarted_daemon_deletes_the_script_of_a_terminated_machine(
    rig: SandboxRig, cloud: CloudServer, provider: Provider
) -> None:
    instance = await launched(rig, provider)
    again = rig.make()
    await again.list()
    await again.terminate(instance)
    await again.list()
    assert cloud.paperspace.scripts == {}


async def test_script_of_an_unclear_launch_stays_for_its_machine(
    rig: SandboxRig, cloud: CloudServer, provider: Provider
) -> None:
    offer = (await h100_offers(provider))[0]
    rig.inject(FaultKind.CUT_AFTER, "launch")
    with pytest.raises(Uncertain):
        await provider.launch(request(offer))
    await provider.list()
    assert len(cloud.paperspace.scripts) == 1


async def test_orphaned_scripts_are_deleted_and_others_are_left(
    rig: SandboxRig, cloud: CloudServer, provider: Provider
) -> None:
    offer = (await h100_offers(provider))[0]
    rig.inject(FaultKind.ERROR_BEFORE, "launch")
    with pytest.raises(Uncertain):
        await provider.launch(request(offer))
    api = provider._api  # type: ignore[attr-defined]
    for name in ("my-own-script", "other-h100-1-abcdef"):
        await api.create_script(name, "#!/bin/sh\n")
    await provider.list()
    assert len(cloud.paperspace.scripts) == 3
    rig.clock.advance(601)
    await provider.list()
    assert sorted(script.name for script in cloud.paperspace.scripts.values()) == [
        "my-own-script",
        "other-h100-1-abcdef",
    ]


async def test_the_script_of_a_machine_that_never_boots_is_deleted(
    rig: SandboxRig, cloud: CloudServer, provider: Provider
) -> None:
    rig.inject(FaultKind.NEVER_BOOTS)
    await launched(rig, provider)
    rig.clock.advance(3601)
    await provider.list()
    assert cloud.paperspace.scripts == {}


async def test_failed_deletion_is_repeated_and_fails_nothing_else(
    rig: SandboxRig, cloud: CloudServer, provider: Provider
) -> None:
    instance = await running(rig, provider)
    rig.clock.advance(301)
    await provider.get(instance)
    rig.inject(FaultKind.ERROR_BEFORE, "other", when=When.ALWAYS)
    rig.clock.advance(301)
    assert len(await provider.list()) == 1
    await provider.terminate(instance)
    assert len(cloud.paperspace.scripts) == 1
    rig.faults.clear()
    await provider.list()
    assert cloud.paperspace.scripts == {}


async def test_no_machine_is_made_without_its_script(rig: SandboxRig, cloud: CloudServer, provider: Provider) -> None:
    offer = (await h100_offers(provider))[0]
    for kind in (FaultKind.ERROR_BEFORE, FaultKind.CUT_AFTER, FaultKind.HTML_AFTER):
        rig.faults.clear()
        rig.inject(kind, "other")
        with pytest.raises(Transient):
            await provider.launch(request(offer))
    assert rig.faults.calls("launch") == 0
    rig.clock.advance(601)
    await provider.list()
    assert cloud.paperspace.scripts == {}


# --- what only events show


@pytest.mark.parametrize("shown", [True, False])
async def test_late_refusal_has_the_vendors_words(
    rig: SandboxRig, cloud: CloudServer, provider: Provider, shown: bool
) -> None:
    cloud.paperspace.options.refuses_late = True
    cloud.paperspace.options.shows_failed = shown
    offer = (await h100_offers(provider))[0]
    rig.ledger.set_capacity("H100", "ny2", 0)
    instance = await provider.launch(request(offer))
    rig.clock.advance(61)
    found = await provider.get(instance)
    assert found.state is (InstanceState.FAILED if shown else InstanceState.GONE)
    assert "out of capacity" in found.reason
    assert [one.state for one in await provider.list()] == ([InstanceState.FAILED] if shown else [])
    await provider.terminate(instance)
    assert list(await provider.list()) == []
    assert cloud.paperspace.scripts == {}


# --- pages, and machines that must be off


@pytest.mark.parametrize("named", [True, False])
async def test_lists_are_read_to_their_end(
    rig: SandboxRig, cloud: CloudServer, provider: Provider, named: bool
) -> None:
    cloud.paperspace.options.page = 3
    cloud.paperspace.options.names_next_page = named
    offer = (await h100_offers(provider))[0]
    tokens = [f"lab-h100-{index}-abcdef" for index in range(7)]
    for token in tokens:
        await provider.launch(request(offer, token))
    assert sorted(found.token for found in await provider.list()) == tokens


async def test_machine_that_must_be_off_first_is_turned_off(
    rig: SandboxRig, cloud: CloudServer, recorder: Recorder, provider: Provider
) -> None:
    cloud.paperspace.options.must_be_off = True
    instance = await running(rig, provider)
    with pytest.raises(Transient):
        await provider.terminate(instance)
    await rig.server.host.settle()
    assert any(one.method == "PATCH" and one.sent == {} for one in recorder.exchanges)
    await provider.terminate(instance)
    rig.clock.advance(21)
    assert (await provider.get(instance)).state is InstanceState.GONE


async def test_type_without_a_template_is_not_offered_and_not_launched(rig: SandboxRig, provider: Provider) -> None:
    offer = (await h100_offers(provider))[0]
    picky = rig.make(templates=["Debian*"])
    assert list(await h100_offers(picky)) == []
    with pytest.raises(InvalidRequest, match=r"ML-in-a-Box|ml-in-a-box"):
        await picky.launch(request(offer))
    assert rig.ledger.everything() == []


async def test_full_region_is_not_available_and_refuses(rig: SandboxRig, provider: Provider) -> None:
    offer = (await h100_offers(provider))[0]
    rig.ledger.set_capacity("H100", "ny2", 0)
    assert [found.available for found in await h100_offers(provider)] == [False]
    with pytest.raises(NoCapacity):
        await provider.launch(request(offer))


async def test_admin_api(rig: SandboxRig, cloud: CloudServer, provider: Provider) -> None:
    await launched(rig, provider)
    async with aiohttp.ClientSession(cloud.admin_url) as http:
        async with http.get("/clouds/paperspace/scripts") as answer:
            assert [script["name"] for script in (await answer.json())["scripts"]] == [TOKEN]
        async with http.put("/clouds/paperspace/options", json={"must_be_off": True}) as answer:
            assert (await answer.json())["must_be_off"] is True
        async with http.put("/clouds/paperspace/options", json={"nonsense": True}) as answer:
            assert answer.status == 400
    assert cloud.paperspace.options.must_be_off
