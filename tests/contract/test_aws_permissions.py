"""EC2's `check` of permissions, beyond the contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from meshd.contract.cases.images import made
from meshd.contract.faults import FaultKind
from meshd.contract.steps import CLUSTER, request, running
from meshd.errors import AuthFailed, InvalidRequest
from meshd.provider_api import Console
from tests.contract.rigs import SandboxRig, build


@pytest.fixture
async def rig() -> AsyncIterator[SandboxRig]:
    async with AsyncExitStack() as stack:
        yield await build("aws", stack)


async def test_check_names_the_identity(rig: SandboxRig) -> None:
    assert (await rig.make().check()).endswith("; no permission is missing")


async def test_spot_and_instance_profile_need_more_permissions(rig: SandboxRig) -> None:
    for permission in ("ec2:DescribeSpotPriceHistory", "iam:PassRole"):
        rig.inject(FaultKind.DENIED, permission)
    await rig.make(spot=False).check()
    provider = rig.make(CLUSTER, spot=True, iam_instance_profile="node")
    with pytest.raises(AuthFailed, match=r"ec2:DescribeSpotPriceHistory, iam:PassRole on arn:"):
        await provider.check()


async def test_a_denial_that_cannot_be_decoded_names_the_call(rig: SandboxRig) -> None:
    for permission in ("ec2:CreateTags", "sts:DecodeAuthorizationMessage"):
        rig.inject(FaultKind.DENIED, permission)
    with pytest.raises(AuthFailed, match=r"ec2:RunInstances$"):
        await rig.make().check()


async def test_terminate_permission_is_checked_on_a_machine_of_the_cluster(rig: SandboxRig) -> None:
    provider = rig.make()
    rig.inject(FaultKind.DENIED, "ec2:TerminateInstances")
    assert "ec2:TerminateInstances" in await provider.check()
    await running(rig, provider)
    with pytest.raises(AuthFailed, match="ec2:TerminateInstances"):
        await provider.check()


async def test_a_missing_permission_for_consoles_is_a_note(rig: SandboxRig) -> None:
    provider = rig.make()
    rig.inject(FaultKind.DENIED, "ec2:GetConsoleOutput")
    assert "GetConsoleOutput" not in await provider.check(), "it can be checked only on a machine of the cluster"
    machine = await running(rig, provider)
    assert "ec2:GetConsoleOutput" in await provider.check()
    assert isinstance(provider, Console)
    with pytest.raises(AuthFailed, match="ec2:GetConsoleOutput"):
        await provider.console(machine)


async def test_what_deletes_images_is_checked_on_an_image_of_the_cluster(rig: SandboxRig) -> None:
    provider = rig.make()
    names = ("ec2:DeregisterImage", "ec2:DeleteSnapshot")
    for name in names:
        rig.inject(FaultKind.DENIED, name)
    said = await provider.check()
    assert not any(name in said for name in names), "there is no image"
    await made(rig, provider)
    said = await provider.check()
    assert all(name in said for name in names)
    rig.clear()
    assert (await provider.check()).endswith("; no permission is missing")
    assert rig.stored_images() == 1, "a check deletes nothing"


async def test_the_console_of_an_instance_that_is_not_on_nitro(rig: SandboxRig) -> None:
    provider = rig.make(CLUSTER, instance_types=["t2.micro"])
    assert isinstance(provider, Console)
    offer = (await provider.offers())[0]
    machine = await provider.launch(request(offer))
    rig.write_console(machine.token, "old but there")
    assert await provider.console(machine) == "old but there"


async def test_check_names_what_it_could_not_try(rig: SandboxRig) -> None:
    rig.inject(FaultKind.DENIED, "ec2:DescribeImages")
    with pytest.raises(AuthFailed, match="ec2:DescribeImages; ec2:RunInstances"):
        await rig.make().check()


async def test_check_names_a_region_without_offers(rig: SandboxRig) -> None:
    provider = rig.make(CLUSTER, instance_types=["m5.24xlarge"])
    answer = await provider.check()
    assert "us-east-1" in answer and "ec2:RunInstances" in answer


async def test_check_names_settings_that_refuse_every_machine(rig: SandboxRig) -> None:
    provider = rig.make(CLUSTER, image_names={"x86_64": "no such image"})
    with pytest.raises(InvalidRequest, match=r"providers\.aws\.images"):
        await provider.check()
