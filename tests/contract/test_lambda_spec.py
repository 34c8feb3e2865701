"""Every request that the Lambda adapter sends and every answer of the stand-in, against the vendor's own document."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from jsonschema import Draft202012Validator, ValidationError

from meshd.contract.faults import Kind
from meshd.contract.steps import request, running
from meshd.errors import ProviderError
from meshd.provider_api import Instance, InstanceId, InstanceState, OfferQuery
from tests.contract.rigs import SECRET, SandboxRig, build

SPEC: dict[str, Any] = json.loads((Path(__file__).parent / "specs" / "lambda_openapi.json").read_text("utf-8"))


@dataclass(frozen=True)
class Exchange:
    method: str
    path: str
    sent: Any
    status: int
    answered: Any


class Recorder:
    """A proxy that keeps what passes through it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.exchanges: list[Exchange] = []

    async def handle(self, incoming: web.Request) -> web.Response:
        raw = await incoming.read()
        headers = {k: v for k, v in incoming.headers.items() if k in ("Authorization", "Content-Type")}
        async with (
            aiohttp.ClientSession() as session,
            session.request(incoming.method, self.target + incoming.path, data=raw or None, headers=headers) as answer,
        ):
            body = await answer.json()
            sent = json.loads(raw) if raw else None
            self.exchanges.append(Exchange(incoming.method, incoming.path, sent, answer.status, body))
            return web.json_response(body, status=answer.status)


@pytest.fixture
async def recorded() -> AsyncIterator[tuple[SandboxRig, Recorder, str]]:
    async with AsyncExitStack() as stack:
        rig = await build("lambda", stack)
        recorder = Recorder(rig.server.lambda_url)
        app = web.Application(client_max_size=4 * 1024 * 1024)
        app.router.add_route("*", "/{tail:.*}", recorder.handle)
        proxy = TestServer(app)
        await proxy.start_server()
        stack.push_async_callback(proxy.close)
        yield rig, recorder, str(proxy.make_url("/"))


def operation(exchange: Exchange) -> dict[str, Any]:
    for path, methods in SPEC["paths"].items():
        pattern = re.sub(r"\{[^}]+\}", "[^/]+", path)
        if re.fullmatch(pattern, exchange.path) and exchange.method.lower() in methods:
            found: dict[str, Any] = methods[exchange.method.lower()]
            return found
    raise AssertionError(f"the vendor has no {exchange.method} {exchange.path}")


def check(schema: dict[str, Any], value: Any) -> None:
    Draft202012Validator({**schema, "components": SPEC["components"]}).validate(value)


def check_exchange(exchange: Exchange) -> None:
    described = operation(exchange)
    if exchange.sent is not None:
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        check({**schema, "additionalProperties": False}, exchange.sent)
    else:
        assert "requestBody" not in described
    answer = described["responses"][str(exchange.status)]
    check(answer["content"]["application/json"]["schema"], exchange.answered)


async def test_whole_life_of_a_machine(recorded: tuple[SandboxRig, Recorder, str]) -> None:
    rig, recorder, url = recorded
    provider = rig.make(base_url=url, image_family="lambda-stack-24-04", tags={"team": "physics"})
    await provider.check()
    await provider.offers(OfferQuery())
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


@pytest.mark.parametrize("kind", [Kind.NO_CAPACITY, Kind.QUOTA, Kind.AUTH, Kind.INVALID])
async def test_refusals(recorded: tuple[SandboxRig, Recorder, str], kind: Kind) -> None:
    rig, recorder, url = recorded
    provider = rig.make(base_url=url)
    offer = (await provider.offers(OfferQuery(gpus=1)))[0]
    rig.strike(kind, "launch")
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
    offer = (await provider.offers(OfferQuery(gpus=1)))[0]
    with pytest.raises(ProviderError):
        await provider.launch(request(offer))
    for exchange in recorder.exchanges:
        check_exchange(exchange)


def test_the_check_can_fail() -> None:
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
