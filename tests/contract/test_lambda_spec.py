"""Every request that the Lambda adapter sends and every answer of the stand-in, against the vendor's own document."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from jsonschema import ValidationError

from meshd.contract.faults import FaultKind
from meshd.contract.steps import request, running
from meshd.errors import ProviderError
from meshd.provider_api import Instance, InstanceId, InstanceState
from tests.contract.recorder import Exchange, OpenApi, Recorder, recording
from tests.contract.rigs import SECRET, SandboxRig

SPEC = OpenApi("lambda_openapi.json")


@pytest.fixture
async def recorded() -> AsyncIterator[tuple[SandboxRig, Recorder, str]]:
    async with recording("lambda") as (rig, recorder):
        yield rig, recorder, recorder.url


def check_exchange(exchange: Exchange) -> None:
    described = SPEC.operation(exchange)
    if exchange.sent is not None:
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        SPEC.check({**schema, "additionalProperties": False}, exchange.sent)
    else:
        assert "requestBody" not in described
    answer = described["responses"][str(exchange.status)]
    SPEC.check(answer["content"]["application/json"]["schema"], exchange.answered)


async def test_lifecycle_of_a_machine(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(base_url=url, image_family="lambda-stack-24-04", tags={"team": "physics"})
    await provider.check()
    await provider.offers()
    instance = await running(rig, provider)
    await provider.list()
    await provider.terminate(instance)
    await provider.get(instance)
    rig.clock.advance(60)
    await provider.get(instance)
    paths = {exchange.path for exchange in recorder.exchanges}
    assert len(paths) == 6
    for exchange in recorder.exchanges:
        check_exchange(exchange)


@pytest.mark.parametrize("kind", [FaultKind.NO_CAPACITY, FaultKind.QUOTA, FaultKind.AUTH, FaultKind.INVALID])
async def test_refusals(recorded: tuple[SandboxRig, Recorder, str], kind: FaultKind) -> None:
    rig, recorder, url = recorded
    provider = rig.make(base_url=url)
    offer = next(offer for offer in await provider.offers() if offer.gpus == 1)
    rig.inject(kind, "launch")
    with pytest.raises(ProviderError):
        await provider.launch(request(offer))
    assert recorder.exchanges[-1].status in (400, 401)
    for exchange in recorder.exchanges:
        check_exchange(exchange)


async def test_unknown_machine_and_unknown_key(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(base_url=url, ssh_key_name="nobody")
    with pytest.raises(ProviderError):
        await provider.get(Instance(provider.name, InstanceId("f" * 32), "", InstanceState.UNKNOWN))
    offer = next(offer for offer in await provider.offers() if offer.gpus == 1)
    with pytest.raises(ProviderError):
        await provider.launch(request(offer))
    for exchange in recorder.exchanges:
        check_exchange(exchange)


def test_the_schema_check_can_fail() -> None:
    wrong = Exchange("POST", "/api/v1/instance-operations/launch", {"quantity": 2}, 200, {})
    with pytest.raises(ValidationError):
        check_exchange(wrong)


async def test_rate_limits_are_real(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, _, _ = recorded
    rig.server.lambda_cloud.limits.call_spacing_s = 1.0
    rig.server.lambda_cloud.limits.launch_spacing_s = 12.0
    headers = {"Authorization": f"Bearer {SECRET}"}
    body = {"region_name": "us-east-1", "instance_type_name": "gpu_1x_a10", "ssh_key_names": ["meshd"]}
    async with aiohttp.ClientSession(rig.server.lambda_url, headers=headers) as session:
        statuses = []
        for wait_s in (0, 0.5, 0.6, 1.1):
            rig.clock.advance(wait_s)
            statuses.append((await session.get("/api/v1/instances")).status)
        assert statuses == [200, 429, 200, 200]
        launches = []
        for wait_s in (2, 6, 7):
            rig.clock.advance(wait_s)
            launches.append((await session.post("/api/v1/instance-operations/launch", json=body)).status)
        assert launches == [200, 429, 200]
