"""EC2's instances, offers and errors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import botocore.parsers
import botocore.session
import pytest

from meshd.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
    Uncertain,
)
from meshd.provider_api import InstanceState, LaunchRequest, Offer, ProviderName
from providers._answers import ErrorAnswer
from providers._prices import shipped
from providers.aws import mapping
from providers.aws.errors import to_error
from providers.aws.mapping import BootImage, run_parameters, to_instance, to_state
from providers.aws.offers import spot_prices, to_instance_type
from providers.aws.sdk import models
from providers.aws.settings import AwsSettings
from tests.bench import ec2_pages

OFFER = Offer(ProviderName("aws"), "us-east-1", "us-east-1a", "p5.4xlarge", "h100-sxm", 1, 80, 16, 262144, 6.88)
CODES: list[tuple[str, int, type[ProviderError]]] = [
    *(
        (c, 500, NoCapacity)
        for c in ("InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity")
    ),
    *((c, 500, NoCapacity) for c in ("InsufficientReservedInstanceCapacity", "UnfulfillableCapacity")),
    *((c, 400, NoCapacity) for c in ("Unsupported", "InstanceTypeNotSupported", "SpotMaxPriceTooLow")),
    *((c, 400, QuotaExceeded) for c in ("VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded")),
    *((c, 503, RateLimited) for c in ("RequestLimitExceeded", "EC2ThrottledException")),
    ("InvalidInstanceID.NotFound", 400, NotFound),
    ("InvalidInstanceID.Malformed", 400, InvalidRequest),
    *((c, 400, Transient) for c in ("IncorrectInstanceState", "IncorrectState")),
    *((c, 400, InvalidRequest) for c in ("IdempotentParameterMismatch", "IdempotentInstanceTerminated")),
    *((c, 400, InvalidRequest) for c in ("InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidParameterValue")),
    *((c, 400, InvalidRequest) for c in ("InvalidParameterCombination", "InvalidGroup.NotFound")),
    *((c, 400, InvalidRequest) for c in ("InvalidSubnetID.NotFound", "InvalidKeyPair.NotFound")),
    *((c, 400, AuthFailed) for c in ("OptInRequired", "PendingVerification", "Blocked", "ExpiredToken")),
    ("AuthFailure", 401, AuthFailed),
    ("UnauthorizedOperation", 403, AuthFailed),
    ("SomethingNew", 403, AuthFailed),
    ("SomethingNew", 400, InvalidRequest),
]


@pytest.mark.parametrize(("code", "status", "kind"), CODES)
@pytest.mark.parametrize("changes", [True, False])
def test_codes(code: str, status: int, kind: type[ProviderError], changes: bool) -> None:
    error = to_error(ErrorAnswer(code, status, "words"), operation="launch", changes=changes)
    assert type(error) is kind
    assert error.vendor_text == f"{code}: words"


@pytest.mark.parametrize("code", ["Unavailable", "InternalError", "ServiceUnavailable", "InternalFailure", "502"])
def test_5xx_makes_a_change_uncertain(code: str) -> None:
    assert type(to_error(ErrorAnswer(code, 500, ""), operation="launch", changes=True)) is Uncertain
    assert type(to_error(ErrorAnswer(code, 503, ""), operation="list", changes=False)) is Transient


@pytest.mark.parametrize(
    ("vendor", "reason", "state"),
    [
        ("pending", "", InstanceState.BOOTING),
        ("running", "", InstanceState.RUNNING),
        ("stopping", "", InstanceState.STOPPING),
        ("stopped", "", InstanceState.STOPPED),
        ("shutting-down", "Client.UserInitiatedShutdown", InstanceState.TERMINATING),
        ("shutting-down", "Server.SpotInstanceTermination", InstanceState.PREEMPTED),
        ("shutting-down", "Server.InsufficientInstanceCapacity", InstanceState.FAILED),
        ("terminated", "Server.SpotInstanceTermination", InstanceState.GONE),
        ("terminated", "Client.InternalError", InstanceState.GONE),
        ("rebalancing", "", InstanceState.UNKNOWN),
        ("", "", InstanceState.UNKNOWN),
    ],
)
def test_states(vendor: str, reason: str, state: InstanceState) -> None:
    assert to_state(vendor, reason) is state


def test_instance() -> None:
    raw = {
        "InstanceId": "i-1",
        "State": {"Name": "terminated", "Code": 48},
        "StateReason": {"Code": "Server.SpotInstanceTermination", "Message": "taken back"},
        "LaunchTime": datetime(2026, 1, 1, tzinfo=UTC),
        "InstanceLifecycle": "spot",
        "Tags": [{"Key": "Name", "Value": "renamed by hand"}, {"Key": "meshd-machine", "Value": "lab-h100-1-abc"}],
    }
    instance = to_instance(raw, "us-east-1", 1.5)
    assert (instance.token, instance.spot, instance.state) == ("lab-h100-1-abc", True, InstanceState.GONE)
    assert instance.reason == "Server.SpotInstanceTermination: taken back"
    assert (instance.public_ip, instance.launched_at) == ("", datetime(2026, 1, 1, tzinfo=UTC))


def row(**gpu: Any) -> dict[str, Any]:
    base = {"Name": "L4", "Manufacturer": "NVIDIA", "Count": 1, "MemoryInfo": {"SizeInMiB": 22888}}
    return {
        "InstanceType": "g6.xlarge",
        "VCpuInfo": {"DefaultVCpus": 4},
        "MemoryInfo": {"SizeInMiB": 16384},
        "GpuInfo": {"Gpus": [{**base, **gpu}]},
    }


def test_instance_type() -> None:
    kind = to_instance_type(row())
    assert kind is not None
    assert (kind.gpu, kind.gpus, kind.gpu_memory_gib, kind.arch) == ("l4", 1, 24, "x86_64")


def test_types_with_a_fraction_of_a_gpu_are_skipped() -> None:
    assert to_instance_type(row(GpuPartitionSize=0.125, Count=0)) is None
    assert to_instance_type(row(Manufacturer="AMD")) is None


def parameters(offer: Offer = OFFER, **settings: Any) -> dict[str, Any]:
    launch = LaunchRequest("lab-h100-1-abc", "lab", offer, "#!/bin/sh", {"a": "b"})
    return run_parameters(launch, AwsSettings(**settings), BootImage("ami-1", "/dev/xvda"))


def test_run_parameters() -> None:
    found = parameters(tags={"team": "physics", "meshd-cluster": "not ours to change"})
    assert found["ClientToken"] == "lab-h100-1-abc"
    assert found["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert found["MetadataOptions"]["HttpTokens"] == "required"
    assert found["MetadataOptions"]["HttpPutResponseHopLimit"] == 1, "no container reaches it through another hop"
    assert found["Placement"] == {"AvailabilityZone": "us-east-1a"}
    assert found["BlockDeviceMappings"][0]["DeviceName"] == "/dev/xvda"
    tags = {tag["Key"]: tag["Value"] for tag in found["TagSpecifications"][1]["Tags"]}
    assert tags == {
        "Name": "lab-h100-1-abc",
        "meshd-machine": "lab-h100-1-abc",
        "meshd-cluster": "lab",
        "team": "physics",
        "a": "b",
    }
    assert not {"SubnetId", "KeyName", "InstanceMarketOptions", "SecurityGroupIds", "IamInstanceProfile"} & set(found)


def test_run_parameters_with_everything() -> None:
    offer = Offer(
        ProviderName("aws"), "us-east-1", "us-east-1a", "p5.4xlarge", "h100-sxm", 1, 80, 16, 262144, 2.0, spot=True
    )
    found = parameters(
        offer,
        subnets={"us-east-1a": "subnet-1"},
        security_groups={"us-east-1": ("sg-1",)},
        key_name="key",
        iam_instance_profile="nodes",
        spot=True,
        spot_max_usd_per_hour=3,
    )
    assert (found["SubnetId"], found["SecurityGroupIds"], found["KeyName"]) == ("subnet-1", ["sg-1"], "key")
    assert "Placement" not in found
    assert found["InstanceMarketOptions"]["SpotOptions"]["MaxPrice"] == "3.0000"


def test_newest_image_and_spot_price() -> None:
    rows = [{"ImageId": f"ami-{n}", "CreationDate": f"2026-0{n}-01", "State": "available"} for n in (1, 3, 2)]
    newest = mapping.newest_image([*rows, {"ImageId": "ami-9", "CreationDate": "2026-09-01", "State": "pending"}])
    assert newest is not None and newest.id == "ami-3"
    assert mapping.newest_image([]) is None
    prices = [
        {
            "InstanceType": "t",
            "AvailabilityZone": "z",
            "SpotPrice": price,
            "Timestamp": datetime(2026, 1, day, tzinfo=UTC),
        }
        for price, day in (("1.0", 1), ("3.0", 3), ("2.0", 2))
    ]
    assert spot_prices(prices) == {("t", "z"): 3.0}


def test_shipped_prices() -> None:
    table = shipped("providers.aws")
    assert set(table.usd_per_hour) == {"us-east-1", "us-west-2", "eu-west-1"}
    assert table.as_of.tzinfo is not None
    pairs = [pair for region in table.usd_per_hour.values() for pair in region.values()]
    assert all(usd is not None and usd < 200 and spot is None for usd, spot in pairs), "EC2 tells spot prices itself"
    assert table.usd("us-east-1", "p5.48xlarge") == 55.04
    assert table.usd("us-east-1", "p5.4xlarge") == 6.88
    assert table.usd("mars-1", "p5.4xlarge") is None


def test_the_sdk_parses_exactly_the_fields_that_are_read() -> None:
    whole = botocore.session.get_session()
    lean = botocore.session.get_session()
    lean.register_component("data_loader", models())
    body = ec2_pages.page(1, 3, "next").replace(
        b"<reason/>",
        b"<reason>Server.SpotInstanceTermination</reason><instanceLifecycle>spot</instanceLifecycle><stateReason>"
        b"<code>Server.SpotInstanceTermination</code><message>taken back</message></stateReason>",
    )
    seen = []
    for session in (whole, lean):
        shape = session.get_service_model("ec2").operation_model("DescribeInstances").output_shape
        answer = botocore.parsers.create_parser("ec2").parse({"status_code": 200, "headers": {}, "body": body}, shape)
        rows = [row for reservation in answer["Reservations"] for row in reservation["Instances"]]
        seen.append([to_instance(row, "us-east-1") for row in rows])
        assert answer["NextToken"] == "next"
    assert seen[0] == seen[1]
    assert (len(seen[1]), seen[1][0].spot, seen[1][0].reason) == (3, True, "Server.SpotInstanceTermination: taken back")
    assert seen[1][0].launched_at == ec2_pages.fleet.BORN
    assert set(rows[0]) == mapping.INSTANCE_FIELDS
