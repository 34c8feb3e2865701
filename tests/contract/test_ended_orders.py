"""When a cloud accepts an order and does not carry it out, the adapter's answer says why."""

from __future__ import annotations

import pytest

from meshd.contract.faults import FaultKind
from meshd.contract.steps import rentable, request
from meshd.model.machine import FailureCause
from meshd.plan.failure_rules import cause_of_end
from meshd.provider_api import InstanceState
from providers.aws.mapping import to_instance as aws_instance
from providers.paperspace.mapping import failed_create
from tests.contract.rigs import GceRig

KINDS = [(FaultKind.NO_CAPACITY, FailureCause.NO_CAPACITY), (FaultKind.QUOTA, FailureCause.QUOTA)]


@pytest.mark.parametrize(("kind", "cause"), KINDS)
async def test_gce_reports_it_only_in_get(kind: FaultKind, cause: FailureCause) -> None:
    async with GceRig() as rig:
        provider = rig.make(insert_wait_s=0)
        (offer, *_) = await rentable(rig, provider)
        rig.inject(kind, "launch")
        accepted = await provider.launch(request(offer))
        assert accepted.state is InstanceState.BOOTING
        assert list(await provider.list()) == []
        found = await provider.get(accepted)
        assert found.state is InstanceState.GONE
        assert cause_of_end(found.state, found.reason, joined=False) is cause


@pytest.mark.parametrize(
    ("code", "message", "cause"),
    [
        ("Server.InsufficientInstanceCapacity", "There was insufficient capacity", FailureCause.NO_CAPACITY),
        ("Server.SpotInstanceTermination", "Spot instance termination", FailureCause.PREEMPTED),
        ("Client.VolumeLimitExceeded", "Volume limit exceeded", FailureCause.QUOTA),
        ("Client.InternalError", "Client error on launch", FailureCause.IMAGE),
        ("Client.InvalidSnapshot.NotFound", "The snapshot was not found", FailureCause.IMAGE),
        ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown", FailureCause.SCRIPT),
        ("Client.UserInitiatedShutdown", "User initiated shutdown", FailureCause.ENDED),
    ],
)
@pytest.mark.parametrize("state", ["shutting-down", "terminated"])
def test_ec2s_state_reason(code: str, message: str, cause: FailureCause, state: str) -> None:
    raw = {
        "InstanceId": "i-1",
        "State": {"Name": state},
        "StateReason": {"Code": code, "Message": f"{code}: {message}"},
    }
    found = aws_instance(raw, "us-east-1")
    assert cause_of_end(found.state, found.reason, joined=False) is cause


def test_paperspaces_create_event() -> None:
    words = failed_create(
        [{"name": "create", "state": "error", "error": "We are currently out of capacity for the selected VM type."}]
    )
    assert cause_of_end(InstanceState.FAILED, words, joined=False) is FailureCause.NO_CAPACITY
