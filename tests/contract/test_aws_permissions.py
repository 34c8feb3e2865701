"""What `check` tells of EC2's permissions, besides what all adapters must."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from meshd.contract.faults import FaultKind
from meshd.contract.steps import CLUSTER, running
from meshd.errors import AuthFailed, InvalidRequest
from tests.contract.rigs import SandboxRig, build


@pytest.fixture
async def rig() -> AsyncIterator[SandboxRig]:
    async with AsyncExitStack() as stack:
        yield await build("aws", stack)


async def test_the_identity_and_that_nothing_is_missing(rig: SandboxRig) -> None:
    assert (await rig.make().check()).endswith("; no permission is missing")


async def test_spot_and_profile_need_more(rig: SandboxRig) -> None:
    for permission in ("ec2:DescribeSpotPriceHistory", "iam:PassRole"):
        rig.inject(FaultKind.DENIED, permission)
    await rig.make(spot=False).check()
    provider = rig.make(CLUSTER, spot=True, iam_instance_profile="node")
    with pytest.raises(AuthFailed, match=r"may not: ec2:DescribeSpotPriceHistory, iam:PassRole on arn:"):
        await provider.check()


async def test_a_code_that_may_not_be_read_leaves_the_calls_own_name(rig: SandboxRig) -> None:
    for permission in ("ec2:CreateTags", "sts:DecodeAuthorizationMessage"):
        rig.inject(FaultKind.DENIED, permission)
    with pytest.raises(AuthFailed, match=r"may not: ec2:RunInstances$"):
        await rig.make().check()


async def test_termination_is_proven_on_a_machine_of_ours(rig: SandboxRig) -> None:
    provider = rig.make()
    rig.inject(FaultKind.DENIED, "ec2:TerminateInstances")
    assert "ec2:TerminateInstances can be told only when there is a machine" in await provider.check()
    await running(rig, provider)
    with pytest.raises(AuthFailed, match="ec2:TerminateInstances"):
        await provider.check()


async def test_what_cannot_be_tried_is_told(rig: SandboxRig) -> None:
    rig.inject(FaultKind.DENIED, "ec2:DescribeImages")
    with pytest.raises(AuthFailed, match="ec2:DescribeImages; ec2:RunInstances can be tried only after these"):
        await rig.make().check()


async def test_a_region_without_offers_is_told(rig: SandboxRig) -> None:
    provider = rig.make(CLUSTER, instance_types=["m5.24xlarge"])
    assert "nothing is offered in us-east-1, so ec2:RunInstances was not tried there" in await provider.check()


async def test_settings_that_no_machine_can_have_are_told(rig: SandboxRig) -> None:
    provider = rig.make(CLUSTER, image_names={"x86_64": "no such image"})
    with pytest.raises(InvalidRequest, match="no AMI in"):
        await provider.check()
