"""Every request that the Compute Engine adapter sends and every answer of the stand-in, against Google's document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import ValidationError

from deploy.sandbox.clouds.gce_key import service_account
from meshd.contract.cases import images
from meshd.contract.faults import FaultKind, When
from meshd.contract.steps import CLUSTER, gang_request, launched, request, running
from meshd.errors import AuthFailed, InvalidRequest, NoCapacity, NotFound, ProviderError, Transient, Uncertain
from meshd.provider_api import Console, GangLauncher, Instance, InstanceId, InstanceState, PriceBook
from providers.gce.mapping import IMAGES
from tests.contract.discovery import Discovery
from tests.contract.recorder import Exchange, Recorder, recording
from tests.contract.rigs import SandboxRig, h100_offers

SPEC = Discovery("compute.v1")
MANAGER = Discovery("cloudresourcemanager.v1")
WHO = "project sandbox-project, meshd@sandbox-project.iam.gserviceaccount.com; no permission is missing"


@pytest.fixture
async def recorded() -> AsyncIterator[tuple[SandboxRig, Recorder, str]]:
    async with recording("gce") as (rig, recorder):
        yield rig, recorder, recorder.url


def check_exchange(exchange: Exchange) -> None:
    spec = MANAGER if exchange.path.endswith(":testIamPermissions") else SPEC
    method = spec.method(exchange.method, exchange.path)
    spec.check_query(method, dict(exchange.query))
    spec.check_request(method, exchange.sent)
    if exchange.status < 400:
        spec.check_answer(method, exchange.answered)
    else:
        error = exchange.answered["error"]
        assert error["code"] == exchange.status
        assert error["message"] and error["errors"][0]["reason"]


EVERYTHING: dict[str, Any] = {
    "attached_gpus": ["n1-standard-8+nvidia-tesla-t4x2"],
    "subnetworks": {"us-central1": "mesh"},
    "network_tags": ["mesh"],
    "ssh_keys": ["root:ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA me"],
    "machine_service_account": "nodes@sandbox-project.iam.gserviceaccount.com",
    "max_run_s": 86400,
    "metadata": {"serial-port-logging-enable": "true"},
    "labels": {"team": "physics"},
}


async def test_lifecycle_of_a_machine(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(api_endpoint=url, **EVERYTHING)
    assert await provider.check() == WHO
    await provider.offers()
    instance = await running(rig, provider)
    await provider.list()
    await provider.terminate(instance)
    await provider.get(instance)
    await provider.terminate(instance)
    rig.clock.advance(60)
    assert (await provider.get(instance)).state is InstanceState.GONE
    for exchange in recorder.exchanges:
        check_exchange(exchange)
    assert len({(exchange.method, exchange.path.rsplit("/", 1)[0]) for exchange in recorder.exchanges}) >= 5


@pytest.mark.parametrize("gpus", [0, 1, 2])
async def test_a_gang(recorded: tuple[SandboxRig, Recorder, str], gpus: int) -> None:
    rig, recorder, url = recorded
    wanted = ["a3-*", "g2-standard-4", "e2-standard-4"]
    provider = rig.make(api_endpoint=url, **{**EVERYTHING, "instance_types": wanted})
    assert isinstance(provider, GangLauncher)
    offer = next(offer for offer in await provider.offers() if offer.gpus == gpus)
    made = await provider.launch_gang(gang_request(offer, 3))
    again = await rig.make(api_endpoint=url).launch_gang(gang_request(offer, 3))  # type: ignore[attr-defined]
    assert [one.id for one in made] == [one.id for one in again]
    rig.set_capacity(offer, 4)
    with pytest.raises(NoCapacity, match="VM_MIN_COUNT_NOT_REACHED"):
        await provider.launch_gang(gang_request(offer, 2, unique="zzzzzz"))
    await provider.list()
    for instance in made:
        await provider.terminate(instance)
    for exchange in recorder.exchanges:
        check_exchange(exchange)
    assert sum(exchange.path.endswith("/bulkInsert") for exchange in recorder.exchanges) == 3


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200", "t4", "l4", ""])
async def test_every_machine_type_is_accepted(recorded: tuple[SandboxRig, Recorder, str], gpu: str) -> None:
    rig, recorder, url = recorded
    wanted = ["a3-*", "a4-*", "g2-standard-4", "e2-standard-4"]
    provider = rig.make(api_endpoint=url, **{**EVERYTHING, "instance_types": wanted})
    offers = [offer for offer in await provider.offers() if offer.gpu.partition("-")[0] == gpu]
    assert offers
    for number, offer in enumerate(offers[:4]):
        made = await provider.launch(request(offer, f"lab-{number}-abc"))
        assert (made.instance_type, made.spot) == (offer.instance_type, offer.spot)
        assert made.usd_per_hour == pytest.approx(offer.usd_per_hour)
    found = {machine.token: machine for machine in rig.ledger.everything()}
    assert {machine.gpus for machine in found.values()} == {offer.gpus for offer in offers[:4]}
    listed = {instance.token: instance for instance in await provider.list()}
    assert [listed[f"lab-{n}-abc"].usd_per_hour for n in range(len(found))] == [
        pytest.approx(offer.usd_per_hour) for offer in offers[:4]
    ]
    for exchange in recorder.exchanges:
        check_exchange(exchange)


@pytest.mark.parametrize(
    "kind", [FaultKind.NO_CAPACITY, FaultKind.QUOTA, FaultKind.AUTH, FaultKind.INVALID, FaultKind.THROTTLED]
)
async def test_refusals(recorded: tuple[SandboxRig, Recorder, str], kind: FaultKind) -> None:
    rig, recorder, url = recorded
    provider = rig.make(api_endpoint=url)
    offer = (await h100_offers(provider))[0]
    rig.inject(kind, "launch")
    with pytest.raises(ProviderError):
        await provider.launch(request(offer))
    for exchange in recorder.exchanges:
        check_exchange(exchange)


async def test_the_console(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(api_endpoint=url)
    assert isinstance(provider, Console)
    instance = await running(rig, provider)
    rig.write_console(instance.token, "z" * 200_000 + "end")
    assert len(await provider.console(instance)) == 64 * 1024
    assert recorder.exchanges[-1].path.endswith("/serialPort")
    for exchange in recorder.exchanges:
        check_exchange(exchange)


async def test_images(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(api_endpoint=url, **EVERYTHING)
    baker = images.makes_images(provider)
    image = await images.made(rig, provider)
    offers = [one for one in await provider.offers() if one.arch == "x86_64" and not one.spot]
    for number, offer in enumerate(
        [*(one for one in offers if not one.gpus)][:1] + [*(one for one in offers if one.gpus)][:1]
    ):
        wanted = replace(request(offer, f"lab-{number}-abc"), image=image.id)
        assert (await provider.launch(wanted)).token == wanted.token
    assert isinstance(provider, GangLauncher)
    gang = replace(gang_request(offers[0], 2), image=image.id)
    await provider.launch_gang(gang)
    await rig.settle()
    assert [rig.image_of(token) for token in gang.tokens] == [image.id, image.id]
    machine = await images.switched_off(rig, provider, images.OTHER)
    rig.inject(FaultKind.IMAGE_FAILS, "create_image")
    begun = await baker.create_image(images.order(machine, images.OTHER))
    await rig.settle()
    rig.advance(rig.image_s + 1)
    with pytest.raises(InvalidRequest, match="INTERNAL_ERROR"):  # the operation says so, the listing has nothing
        await baker.create_image(images.order(machine, images.OTHER))
    rig.server.gce.forget_requests()
    again = await baker.create_image(images.order(machine, images.OTHER))
    assert again.id == begun.id
    rig.server.gce.forget_requests()
    await baker.create_image(images.order(machine, images.OTHER))
    await rig.settle()
    rig.advance(rig.image_s + 1)
    assert len(await baker.images()) == 2
    with pytest.raises(InvalidRequest, match="not of this cluster"):
        rig.server.gce.forget_requests()
        await images.makes_images(rig.make("other", api_endpoint=url)).create_image(images.order(machine, images.OTHER))
    for one in await baker.images():
        await baker.delete_image(one)
        await baker.delete_image(one)
    await rig.settle()
    with pytest.raises(InvalidRequest, match="global/images"):
        await provider.launch(replace(request(offers[0], "lab-9-abc"), image=image.id))
    for exchange in recorder.exchanges:
        check_exchange(exchange)
    paths = [exchange.path for exchange in recorder.exchanges if "/global/images" in exchange.path]
    assert len(paths) > 10


async def test_the_disk_of_a_machine_that_runs_is_not_copied(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(api_endpoint=url)
    with pytest.raises(Transient, match="resourceInUse"):
        await images.makes_images(provider).create_image(images.order(await running(rig, provider)))
    assert rig.stored_images() == 0
    check_exchange(recorder.exchanges[-1])


async def test_a_machine_that_is_off_shows_no_console(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(api_endpoint=url)
    machine = await images.switched_off(rig, provider)
    rig.write_console(machine.token, "its last words")
    assert isinstance(provider, Console)
    with pytest.raises(Transient):
        await provider.console(machine)
    check_exchange(recorder.exchanges[-1])


async def test_machines_of_images_boot_with_the_driver(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    """Machines with GPUs boot from what is made of a machine without."""
    rig, recorder, url = recorded
    provider = rig.make(api_endpoint=url)
    await images.switched_off(rig, provider)
    (sent,) = [one.sent for one in recorder.exchanges if one.method == "POST" and one.path.endswith("/instances")]
    assert sent["machineType"].endswith("e2-standard-4")
    assert sent["disks"][0]["initializeParams"]["sourceImage"] == IMAGES["gpu/x86_64"]
    named = rig.make(api_endpoint=url, images={"gpu/x86_64": "projects/mine/global/images/x"})
    offers = await provider.offers()
    assert {images.makes_images(named).named_image(one) for one in offers if one.gpus} == {
        "projects/mine/global/images/x"
    }
    assert {images.makes_images(named).named_image(one) for one in offers if not one.gpus} == {""}


async def test_an_image_whose_disk_is_larger_is_refused(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    image = await images.made(rig, rig.make(api_endpoint=url))
    smaller = rig.make(api_endpoint=url, disk_gib=50)
    offer = next(one for one in await smaller.offers() if not one.spot)
    with pytest.raises(InvalidRequest, match="smaller than the image"):
        await smaller.launch(replace(request(offer), image=image.id))
    check_exchange(recorder.exchanges[-1])


async def test_a_baked_image_that_the_credential_may_not_use_leaves_the_cloud_alone(
    recorded: tuple[SandboxRig, Recorder, str],
) -> None:
    rig, _, url = recorded
    provider = rig.make(api_endpoint=url)
    image = await images.made(rig, provider)
    rig.inject(FaultKind.DENIED, "compute.images.useReadOnly")
    offer = next(one for one in await provider.offers() if not one.spot)
    with pytest.raises(InvalidRequest, match=r"lacks compute\.images\.useReadOnly"):
        await provider.launch(replace(request(offer), image=image.id))
    made = await provider.launch(request(offer))
    assert made.state is not InstanceState.GONE


@pytest.mark.parametrize("permission", ["compute.images.create", "compute.images.delete", "compute.images.list"])
async def test_missing_permissions_for_images_are_a_note(
    recorded: tuple[SandboxRig, Recorder, str], permission: str
) -> None:
    rig, _, url = recorded
    rig.inject(FaultKind.DENIED, permission)
    assert permission in await rig.make(api_endpoint=url).check()


async def test_a_missing_permission_for_consoles_is_a_note(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, _, url = recorded
    rig.inject(FaultKind.DENIED, "compute.instances.getSerialPortOutput")
    provider = rig.make(api_endpoint=url)
    assert "compute.instances.getSerialPortOutput" in await provider.check()
    instance = await running(rig, provider)
    assert isinstance(provider, Console)
    with pytest.raises(AuthFailed, match="getSerialPortOutput"):
        await provider.console(instance)


async def test_unknown_machines(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(api_endpoint=url, fresh_s=0)
    nobody = Instance(provider.name, InstanceId("us-central1-a/nobody"), "", InstanceState.UNKNOWN)
    with pytest.raises(NotFound):
        await provider.get(nobody)
    with pytest.raises(NotFound):
        await provider.terminate(nobody)
    with pytest.raises(InvalidRequest):
        await provider.get(Instance(provider.name, InstanceId("4711"), "", InstanceState.UNKNOWN))
    for exchange in recorder.exchanges:
        check_exchange(exchange)


def test_the_schema_check_can_fail() -> None:
    path = "/compute/v1/projects/p/zones/us-central1-a/instances"
    for wrong in ({"nam": "x"}, {"disks": [{"initializeParams": {"diskSizeGb": 100}}]}, {"creationTimestamp": "now"}):
        with pytest.raises(ValidationError):
            check_exchange(Exchange("POST", path, wrong, 200, {}))
    with pytest.raises(AssertionError):
        check_exchange(Exchange("GET", path, None, 200, {}, {"returnEverything": "true"}))
    with pytest.raises(AssertionError):
        check_exchange(Exchange("GET", "/compute/v1/projects/p/machines", None, 200, {}))


# --- behaviour of this cloud alone


async def test_get_reports_a_refusal_that_comes_after_the_launch(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, _, _ = recorded
    provider = rig.make()
    offer = (await h100_offers(provider))[0]
    rig.inject(FaultKind.NO_CAPACITY, "launch")
    with pytest.raises(NoCapacity):
        await provider.launch(request(offer))
    found = await provider.get(
        Instance(provider.name, InstanceId(f"{offer.zone}/lab-h100-1-k7q2mz"), "", InstanceState.UNKNOWN)
    )
    assert (found.state, found.token) == (InstanceState.GONE, "lab-h100-1-k7q2mz")
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in found.reason


@pytest.mark.parametrize("spot", [True, False])
async def test_get_reports_what_ended_a_machine(recorded: tuple[SandboxRig, Recorder, str], spot: bool) -> None:
    rig, _, _ = recorded
    provider = rig.make()
    offer = (await h100_offers(provider, gpus=8, spot=spot))[0]
    if not spot:
        rig.inject(FaultKind.DIES, seconds=60)
    instance = await provider.launch(request(offer))
    await rig.settle()
    rig.advance(61)
    if spot:
        await rig.preempt(instance.token)
        assert (await provider.get(instance)).state is InstanceState.PREEMPTED
        rig.advance(rig.end_s + 1)
    found = await provider.get(instance)
    assert found.state is InstanceState.GONE
    assert found.reason.startswith("compute.instances.preempted" if spot else "delete by somebody@example.com")


async def test_launch_returns_the_machine_that_has_the_name(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    """Google may have forgotten the request id; then only the name identifies the machine."""
    rig, _, _ = recorded
    provider = rig.make()
    first = await launched(rig, provider)
    rig.server.gce.forget_requests()
    again = await launched(rig, provider)
    assert again.id == first.id
    assert len(rig.ledger.everything()) == 1
    other = rig.make("other")
    rig.server.gce.forget_requests()
    with pytest.raises(InvalidRequest, match="lab-h100"):
        await launched(rig, other)


async def test_a_list_without_a_zone_fails(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(api_endpoint=url)
    path = "/compute/v1/projects/sandbox-project/aggregated/instances"
    page: dict[str, Any] = {"kind": "compute#instanceAggregatedList", "items": {}}
    gap = {"warning": {"code": "UNREACHABLE", "message": "us-east4-a is unreachable"}}
    for wrong in (
        {**page, "unreachables": ["zones/us-east4-a"]},
        {**page, "items": {"zones/us-east4-a": gap}},
        {**page, **gap},
        {},
        {"items": {}},
    ):
        recorder.instead[path] = wrong
        with pytest.raises(Transient):
            await provider.list()
    recorder.instead[path] = page
    assert list(await provider.list()) == []


async def test_an_insert_with_an_unexpected_answer_is_uncertain(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(api_endpoint=url)
    offer = (await h100_offers(provider))[0]
    recorder.instead[f"/compute/v1/projects/sandbox-project/zones/{offer.zone}/instances"] = {"hello": "proxy"}
    with pytest.raises(Uncertain):
        await provider.launch(request(offer))


async def test_without_credentials(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(CLUSTER, api_endpoint=url, service_account=None, anonymous=True, project="mine")
    assert list(await provider.list()) == []
    assert recorder.exchanges[-1].path == "/compute/v1/projects/mine/aggregated/instances"
    nameless = rig.make(CLUSTER, api_endpoint=url, service_account=None, anonymous=True)
    with pytest.raises(InvalidRequest, match=r"providers\.gce\.project"):
        await nameless.list()


async def test_application_default_credentials(
    recorded: tuple[SandboxRig, Recorder, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rig, _, url = recorded
    (tmp_path / "key.json").write_text(service_account())
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    provider = rig.make(CLUSTER, api_endpoint=url, service_account=None)
    assert await provider.check() == WHO
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(AuthFailed):
        await rig.make(CLUSTER, service_account=None).check()


async def test_an_accepted_launch_succeeds_even_when_later_reads_fail(
    recorded: tuple[SandboxRig, Recorder, str],
) -> None:
    rig, _, _ = recorded
    provider = rig.make()
    offer = (await h100_offers(provider))[0]
    for operation in ("get", "other"):
        rig.inject(FaultKind.AUTH, operation, when=When.ALWAYS)
    made = await provider.launch(request(offer))
    assert (made.id, made.state) == (f"{offer.zone}/lab-h100-1-k7q2mz", InstanceState.BOOTING)
    rig.server.gce.forget_requests()
    with pytest.raises(Uncertain):
        await provider.launch(request(offer))
    rig.faults.clear()
    assert (await provider.launch(request(offer))).id == made.id
    assert len(rig.ledger.everything()) == 1


async def test_get_reports_a_machine_that_could_not_be_made(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    """Google may refuse capacity after the launch has stopped waiting."""
    rig, _, _ = recorded
    provider = rig.make(insert_wait_s=0)
    offer = (await h100_offers(provider))[0]
    rig.inject(FaultKind.NO_CAPACITY, "launch")
    made = await provider.launch(request(offer))
    assert made.state is InstanceState.BOOTING
    found = await provider.get(made)
    assert (found.state, found.vendor_state) == (InstanceState.GONE, "never made")
    assert list(await provider.list()) == []
    await provider.terminate(made)


async def test_skus_fit_the_schema_of_the_billing_catalogue(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    """The request and each page of the Cloud Billing API, against its own document."""
    rig, recorder, url = recorded
    provider = rig.make(billing_endpoint=url, call_timeout_s=100.0)
    assert isinstance(provider, PriceBook)
    await provider.fetch_prices()
    spec = Discovery("cloudbilling.v1")
    pages = [one for one in recorder.exchanges if one.path.endswith("/skus")]
    assert len(pages) > 1
    for exchange in pages:
        method = spec.method(exchange.method, exchange.path)
        spec.check_query(method, dict(exchange.query))
        spec.check_answer(method, exchange.answered)
    tokens = [one.query.get("pageToken", "") for one in pages]
    assert tokens == ["", *(one.answered["nextPageToken"] for one in pages[:-1])]
    assert pages[-1].answered["nextPageToken"] == ""


async def test_without_the_resource_manager_only_reads_are_checked(
    recorded: tuple[SandboxRig, Recorder, str],
) -> None:
    rig, recorder, url = recorded
    provider = rig.make(api_endpoint=url)
    recorder.silent = "/v1/projects/sandbox-project:testIamPermissions"
    assert "Cloud Resource Manager API" in await provider.check()
    rig.inject(FaultKind.DENIED, "compute.machineTypes.list")
    with pytest.raises(AuthFailed, match=r"compute\.machineTypes\.list$"):
        await provider.check()


async def test_an_optional_permission_is_only_mentioned(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, _, url = recorded
    rig.inject(FaultKind.DENIED, "compute.zoneOperations.list")
    assert "compute.zoneOperations.list" in await rig.make(api_endpoint=url).check()
