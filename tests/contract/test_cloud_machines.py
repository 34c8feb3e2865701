"""What the clouds' stand-ins do with a machine beyond their APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from meshd.contract.steps import running
from meshd.provider_api import InstanceState
from tests.contract.rigs import RIGS, SandboxRig, build


@pytest.fixture(params=list(RIGS))
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[SandboxRig]:
    async with AsyncExitStack() as stack:
        yield await build(request.param, stack)


async def test_machines_have_gpus_and_cost_money_until_they_have_ended(rig: SandboxRig) -> None:
    provider = rig.make()
    instance = await running(rig, provider)
    (machine,) = rig.ledger.everything()
    assert (machine.name, machine.gpu_name) == (instance.token, "NVIDIA H100 80GB HBM3")
    assert rig.hypervisor.alive(machine.name)
    rig.advance(3600 - rig.boot_s - 1)
    await provider.terminate(instance)
    rig.advance(rig.end_s)
    assert (await provider.get(instance)).state is InstanceState.GONE
    rig.advance(7200)
    (machine,) = rig.ledger.everything()
    assert machine.cost_usd(rig.clock.now()) == pytest.approx(machine.usd_per_hour * (3600 + rig.end_s) / 3600)
    await rig.settle()
    assert not rig.hypervisor.alive(machine.name)
