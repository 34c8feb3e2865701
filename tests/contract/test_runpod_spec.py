"""Every request that the RunPod adapter sends and every answer of the stand-in, against the vendor's own document."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest
from jsonschema import ValidationError

from meshd.contract.faults import FaultKind, When
from meshd.contract.steps import launched, request, running
from meshd.errors import AuthFailed, NotFound, ProviderError, RateLimited
from meshd.provider_api import Instance, InstanceId, InstanceState
from tests.contract.recorder import Exchange, OpenApi, Recorder, recording
from tests.contract.rigs import SECRET, SandboxRig, h100_offers

SPEC = OpenApi("runpod_v2_openapi.json")


@pytest.fixture
async def recorded() -> AsyncIterator[tuple[SandboxRig, Recorder, str]]:
    async with recording("runpod") as (rig, recorder):
        yield rig, recorder, recorder.url


def check_query(described: dict[str, Any], query: Mapping[str, str]) -> None:
    known = {p["name"]: p["schema"] for p in map(SPEC.resolved, described.get("parameters", [])) if p["in"] == "query"}
    for name, text in query.items():
        assert name in known, f"the vendor has no parameter {name}"
        kind = str(SPEC.resolved(known[name]).get("type", "string"))
        value: Any = text.split(",") if kind == "array" else text if kind == "string" else json.loads(text)
        SPEC.check(known[name], value)


def check_exchange(exchange: Exchange) -> None:
    described = SPEC.operation(exchange)
    check_query(described, exchange.query)
    if exchange.sent is not None:
        SPEC.check(described["requestBody"]["content"]["application/json"]["schema"], exchange.sent)
        assert exchange.path != "/v2/pods" or ("gpu" in exchange.sent) != ("cpu" in exchange.sent)
    else:
        assert "requestBody" not in described
    responses = described["responses"]
    answer = SPEC.resolved(responses.get(str(exchange.status), responses["default"]))
    if "content" not in answer:
        assert exchange.answered is None
        return
    SPEC.check(answer["content"][exchange.content_type]["schema"], exchange.answered)


def check_all(recorder: Recorder) -> None:
    for exchange in recorder.exchanges:
        check_exchange(exchange)
        assert exchange.headers.get("User-Agent", "").startswith("meshd/")


EVERYTHING: dict[str, Any] = {
    "clouds": ["secure", "community"],
    "country_codes": ["US", "CA"],
    "min_cuda_version": "12.4",
    "cpu_types": ["*"],
    "registry_id": "reg1",
    "network_volumes": {"US-KS-2": "vol1", "US-TX-3": "vol2", "CA-MTL-1": "vol3"},
    "ports": ["22/tcp", "8888/http"],
    "global_networking": True,
    "start_ssh": True,
    "env": {"HF_HOME": "/workspace/hf"},
}


@pytest.mark.parametrize("settings", [{}, EVERYTHING], ids=["defaults", "everything"])
async def test_lifecycle_of_a_pod(recorded: tuple[SandboxRig, Recorder, str], settings: dict[str, Any]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(base_url=url, **settings)
    await provider.check()
    await provider.offers()
    instance = await running(rig, provider)
    await provider.list()
    await provider.terminate(instance)
    await provider.get(instance)
    rig.clock.advance(60)
    assert (await provider.get(instance)).state is InstanceState.GONE
    statuses = {exchange.status for exchange in recorder.exchanges}
    assert statuses == {200, 201, 204, 404}
    check_all(recorder)


async def test_cpu_and_community_pods(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(base_url=url, cpu_types=["cpu5c"], cpu_vcpus=[4], clouds=["secure", "community"])
    offers = await provider.offers()
    cpu = next(offer for offer in offers if offer.gpus == 0)
    community = next(offer for offer in offers if offer.instance_type.endswith("@community"))
    for number, offer in enumerate((cpu, community)):
        made = await provider.launch(request(offer, f"lab-x-{number}-abcdef"))
        assert (made.instance_type, made.region) == (offer.instance_type, offer.region)
        assert made.usd_per_hour == pytest.approx(offer.usd_per_hour)
    assert {pod.instance_type for pod in await provider.list()} == {cpu.instance_type, community.instance_type}
    check_all(recorder)


async def test_pod_states_and_addresses(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(base_url=url)
    rig.inject(FaultKind.NO_ADDRESS)
    instance = await launched(rig, provider)
    assert (await provider.get(instance)).vendor_state == "RUNNING"
    assert (await provider.get(instance)).state is InstanceState.BOOTING
    rig.clock.advance(31)
    await provider.get(instance)
    await rig.hypervisor.destroy(instance.token)
    stopped = await provider.get(instance)
    assert (stopped.state, stopped.vendor_state) == (InstanceState.STOPPED, "EXITED")
    rig.inject(FaultKind.DIES, seconds=1)
    other = await launched(rig, provider, "lab-h100-2-abcdef")
    rig.clock.advance(2)
    assert (await provider.get(other)).vendor_state == "TERMINATED"
    assert other.id not in {pod.id for pod in await provider.list()}
    check_all(recorder)


@pytest.mark.parametrize(
    "kind", [FaultKind.NO_CAPACITY, FaultKind.QUOTA, FaultKind.AUTH, FaultKind.INVALID, FaultKind.THROTTLED]
)
async def test_refusals(recorded: tuple[SandboxRig, Recorder, str], kind: FaultKind) -> None:
    rig, recorder, url = recorded
    provider = rig.make(base_url=url)
    offer = (await h100_offers(provider))[0]
    rig.inject(kind, "launch", seconds=3)
    with pytest.raises(ProviderError):
        await provider.launch(request(offer))
    assert recorder.exchanges[-1].status in (400, 401, 403, 422, 429)
    assert recorder.exchanges[-1].content_type == "application/problem+json"
    check_all(recorder)


async def test_unknown_pod_and_bad_key(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    unknown = Instance(rig.make().name, InstanceId("no such/pod"), "", InstanceState.UNKNOWN)
    with pytest.raises(NotFound):
        await rig.make(base_url=url, fresh_s=0).get(unknown)
    with pytest.raises(AuthFailed):
        await rig.make(base_url=url, api_key="wrong").list()
    check_all(recorder)


@pytest.mark.parametrize("body", [{"interruptible": True}, {"imageName": "x"}, {"gpu": {"id": "x", "minRam": 1}}])
async def test_the_stand_in_refuses_what_the_vendor_refuses(
    recorded: tuple[SandboxRig, Recorder, str], body: dict[str, Any]
) -> None:
    _, recorder, url = recorded
    good = {"name": "lab", "image": "image", "gpu": {"id": "NVIDIA A40"}}
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        async with session.post("/v2/pods", json={**good, **body}) as answer:
            assert answer.status == 422
        async with session.post("/v2/pods", json=good) as answer:
            assert answer.status == 201
    refused, made = recorder.exchanges
    with pytest.raises(ValidationError):
        check_exchange(refused)
    check_exchange(made)


def test_the_schema_check_can_fail() -> None:
    with pytest.raises(ValidationError):
        check_exchange(Exchange("POST", "/v2/pods", {"name": "x"}, 201, {}))
    with pytest.raises(AssertionError):
        check_exchange(Exchange("GET", "/v2/pods", None, 200, {"pods": []}, {"name": "x"}))


async def test_calls_keep_to_the_rate_limit(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    rig.server.runpod.per_minute = 3
    provider = rig.make(base_url=url, max_wait_s=1)
    for _ in range(3):
        await provider.list()
    with pytest.raises(RateLimited) as caught:
        await provider.list()
    assert len(recorder.exchanges) == 3  # what would be refused is not sent
    assert caught.value.retry_after_s is not None and 50 < caught.value.retry_after_s <= 60
    other = rig.make(max_wait_s=2)  # another process, which has not seen the header
    with pytest.raises(RateLimited) as caught:
        await other.list()
    assert caught.value.retry_after_s == 60


async def test_calls_without_user_agent_are_refused(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, _, _ = recorded
    headers = {"Authorization": f"Bearer {SECRET}", "User-Agent": "Python-urllib/3.11"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{rig.server.runpod_url}/v2/pods") as answer,
    ):
        assert (answer.status, await answer.text()) == (403, "error code: 1010")


async def test_a_retired_api_is_an_invalid_request(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, _, url = recorded
    provider = rig.make(base_url=url)
    rig.inject(FaultKind.ERROR_BEFORE, when=When.ALWAYS, status=410)
    for call in (provider.check, provider.list):
        with pytest.raises(ProviderError):
            await call()


async def test_shown_stock_is_only_a_hint(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(base_url=url, data_centers=["US-KS-2", "EU-RO-1"])
    async with aiohttp.ClientSession(rig.server.admin_url) as session:
        low = {"data_center": "US-KS-2", "availability": "LOW"}
        assert (await session.put("/clouds/runpod/stock", json=low)).status == 200
        assert (await session.put("/clouds/runpod/stock", json={**low, "availability": "SOME"})).status == 400
        price = {"id": "NVIDIA H100 80GB HBM3", "secure": 1.25}
        assert (await session.put("/clouds/runpod/gpus", json=price)).status == 200
        assert (await session.put("/clouds/runpod/limits", json={"per_minute": 600})).status == 200
    offers = [o for o in await h100_offers(provider) if o.gpu == "h100-sxm"]
    assert [(o.region, o.available, o.usd_per_hour) for o in offers] == [
        ("US-KS-2", True, 1.25),
        ("EU-RO-1", False, 1.25),
    ]
    check_all(recorder)


ASKED: dict[str, Any] = {
    "name": "lab",
    "image": "image",
    "args": "bash -c 'echo a b' c",
    "env": {"A": "b"},
    "ports": ["22/tcp", "8888/http", "70001/tcp"],
    "gpu": {"id": "NVIDIA A40", "count": 2},
}


async def test_a_container_has_what_the_order_and_runpod_say(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, _, url = recorded
    async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {SECRET}"}) as session:
        await (await session.post("/v2/pods", json=ASKED)).json()
    (machine,) = rig.ledger.everything()
    pod = machine.pod
    assert pod is not None
    assert pod.args == ASKED["args"], "as they were sent: nothing in them is read"
    key = pod.env["RUNPOD_API_KEY"]
    assert pod.env == {
        "A": "b",
        "RUNPOD_API_KEY": key,
        "RUNPOD_CPU_COUNT": "4",
        "RUNPOD_DC_ID": machine.region,
        "RUNPOD_GPU_COUNT": "2",
        "RUNPOD_POD_HOSTNAME": f"{machine.id}-64410",
        "RUNPOD_POD_ID": machine.id,
        "RUNPOD_TCP_PORT_22": "10022",
        "RUNPOD_TCP_PORT_70001": "30001",
    }
    assert pod.address_variable == "RUNPOD_PUBLIC_IP"
    assert (pod.ports, pod.cpus, pod.memory_mib) == ({10022: 22, 30001: 30001}, 4, 16384)
    assert pod.hostname != machine.name


async def test_a_pods_own_key_is_good_for_that_pod_only(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, _, url = recorded
    async with aiohttp.ClientSession(url) as session:
        owner = {"Authorization": f"Bearer {SECRET}"}
        for _ in range(2):
            await session.post("/v2/pods", json=ASKED, headers=owner)
        mine, other = (machine.id for machine in rig.ledger.everything())
        pod = rig.ledger.everything()[0].pod
        assert pod is not None
        headers = {"Authorization": f"Bearer {pod.env['RUNPOD_API_KEY']}"}
        for path, status in ((f"/v2/pods/{mine}", 200), (f"/v2/pods/{other}", 403), ("/v2/pods", 403)):
            async with session.get(path, headers=headers) as answer:
                assert answer.status == status
        async with session.delete(f"/v2/pods/{mine}", headers=headers) as answer:
            assert answer.status == 204


async def test_actions_of_a_pod(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {SECRET}"}) as session:

        async def act(action: str) -> tuple[int, str]:
            async with session.post(f"/v2/pods/{machine.id}/action", json={"action": action}) as answer:
                await rig.settle()
                body = await answer.json() if answer.status == 200 else {}
                return answer.status, body.get("status", "")

        await session.post("/v2/pods", json=ASKED)
        await rig.settle()
        (machine,) = rig.ledger.everything()
        before = machine.address
        assert await act("start") == (409, "")
        assert await act("restart") == (200, "RUNNING")
        assert rig.hypervisor.restarts == [machine.name]
        assert await act("stop") == (200, "EXITED")
        assert not rig.hypervisor.alive(machine.name)
        assert await act("restart") == (409, "")
        assert (await act("start"))[0] == 200
        assert rig.hypervisor.alive(machine.name)
        assert machine.address and before
        assert await act("fly") == (422, "")
        assert await act("terminate") == (204, "")
    for exchange in recorder.exchanges:
        if exchange.status != 422:
            check_exchange(exchange)
