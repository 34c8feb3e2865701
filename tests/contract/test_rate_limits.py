"""Each adapter keeps to its vendor's rate limits. Only the daemon repeats a call that exceeded one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime

import pytest

from deploy.sandbox.clouds.aws_limits import RunLimits
from meshd.contract.faults import FaultKind, When
from meshd.contract.steps import CLUSTER, gang_request, request
from meshd.errors import RateLimited
from meshd.provider_api import GangLauncher
from tests.contract.rigs import SandboxRig, build, h100_offers


@pytest.fixture
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[SandboxRig]:
    async with AsyncExitStack() as stack:
        yield await build(request.param, stack)


class CloudTime:
    """A clock shared by adapter and cloud, which moves when the adapter sleeps."""

    def __init__(self, rig: SandboxRig) -> None:
        self._rig = rig
        self._began_at = rig.clock.now()
        self.waited_s = 0.0

    def now(self) -> datetime:
        return self._rig.clock.now()

    def monotonic_s(self) -> float:
        return (self.now() - self._began_at).total_seconds()

    async def sleep(self, delay_s: float) -> None:
        self.waited_s += delay_s
        self._rig.clock.advance(delay_s)
        await asyncio.sleep(0)


@pytest.mark.parametrize("rig", ["lambda"], indirect=True)
async def test_lambda_calls_keep_to_the_rate_limit(rig: SandboxRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call per second and one launch per 12 s: the stand-in refuses calls that come sooner."""
    clock = CloudTime(rig)
    monkeypatch.setattr("providers._limits.SystemClock", lambda: clock)
    limits = rig.server.lambda_cloud.limits
    limits.call_spacing_s, limits.launch_spacing_s = 1.0, 12.0
    provider = rig.make(CLUSTER, call_spacing_s=1.1, launch_spacing_s=12.5, max_wait_s=29.0)
    (offer, *_) = await h100_offers(provider)
    assert provider.capabilities.launch_spacing_s >= limits.launch_spacing_s
    made = [await provider.launch(request(offer, f"lab-h100-{n}-abcdef")) for n in (1, 2, 3)]
    assert len(await provider.list()) == 3
    for _ in range(3):
        await provider.get(made[0])
    assert clock.waited_s >= 2 * 12.5


@pytest.mark.parametrize("rig", ["aws"], indirect=True)
async def test_ec2s_sdk_repeats_reads_and_nothing_else(rig: SandboxRig) -> None:
    """RequestLimitExceeded comes from a token bucket: the SDK repeats a read after a pause, never a create."""
    provider = rig.make(CLUSTER, read_attempts=3, regions=["us-east-1"])
    (offer, *_) = await h100_offers(provider)
    for _ in range(2):
        rig.inject(FaultKind.THROTTLED, "list")
    before = rig.faults.calls("list")
    assert list(await provider.list()) == []
    assert rig.faults.calls("list") - before == 3
    rig.inject(FaultKind.THROTTLED, "launch", when=When.ALWAYS)
    with pytest.raises(RateLimited, match="RequestLimitExceeded"):
        await provider.launch(request(offer))
    assert rig.faults.calls("launch") == 1
    rig.faults.clear()
    machine = await provider.launch(request(offer))
    rig.inject(FaultKind.THROTTLED, "terminate", when=When.ALWAYS)
    with pytest.raises(RateLimited):
        await provider.terminate(machine)
    assert rig.faults.calls("terminate") == 1


@pytest.mark.parametrize("rig", ["gce", "paperspace", "runpod", "lambda"], indirect=True)
@pytest.mark.parametrize("operation", ["list", "launch"])
async def test_a_rate_limited_call_is_sent_once(rig: SandboxRig, operation: str) -> None:
    provider = rig.make()
    (offer, *_) = await h100_offers(provider)
    rig.inject(FaultKind.THROTTLED, operation, when=When.ALWAYS)
    with pytest.raises(RateLimited):
        await (provider.list() if operation == "list" else provider.launch(request(offer)))
    assert rig.faults.calls(operation) == 1


@pytest.mark.parametrize("rig", ["aws"], indirect=True)
async def test_ec2_counts_a_gang_as_one_call_and_as_many_instances(rig: SandboxRig) -> None:
    """Five calls at once, and here 20 instances: a third gang of ten has a call left, and no instances."""
    rig.server.ec2.run_limits = RunLimits()
    provider = rig.make(CLUSTER, regions=["us-east-1"])
    assert isinstance(provider, GangLauncher)
    (offer, *_) = await h100_offers(provider)
    rig.server.ec2.run_limits.instances = 20.0
    for unique in ("aaaaaa", "bbbbbb"):
        assert len(await provider.launch_gang(gang_request(offer, 10, unique=unique))) == 10
    with pytest.raises(RateLimited):
        await provider.launch_gang(gang_request(offer, 10, unique="cccccc"))
    rig.advance(5)
    assert len(await provider.launch_gang(gang_request(offer, 10, unique="cccccc"))) == 10
    for number in range(5):
        rig.advance(0.5)
        await provider.launch(request(offer, f"lab-h100-{number}-abcdef"))
