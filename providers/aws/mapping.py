"""EC2's instances and launch parameters. PURE: no I/O, no clock.

Sources: the EC2 API reference (instance lifecycle, RunInstances idempotency) and the botocore model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from meshd.provider_api import CLUSTER_TAG, MACHINE_TAG, Instance, InstanceId, InstanceState, LaunchRequest
from providers.aws.errors import AWS
from providers.aws.settings import AwsSettings

_STATES = {
    "pending": InstanceState.BOOTING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.TERMINATING,
    "terminated": InstanceState.GONE,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPED,
}
_PREEMPTED = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
_FAILED = frozenset(
    {
        "Server.InsufficientInstanceCapacity",
        "Server.InternalError",
        "Client.InternalError",
        "Client.VolumeLimitExceeded",
        "Client.InvalidSnapshot.NotFound",
    }
)


def tags_of(raw: Mapping[str, Any]) -> dict[str, str]:
    """The tags of an instance."""
    return {str(tag["Key"]): str(tag.get("Value", "")) for tag in raw.get("Tags", [])}


INSTANCE_FIELDS = frozenset(
    {
        "InstanceId",
        "InstanceLifecycle",
        "InstanceType",
        "LaunchTime",
        "PublicIpAddress",
        "State",
        "StateReason",
        "StateTransitionReason",
        "Tags",
    }
)
"""The fields that `to_instance` reads; the SDK parses no others."""


def to_instance(raw: Mapping[str, Any], region: str, usd_per_hour: float | None = None) -> Instance:
    """An instance in an answer of DescribeInstances or RunInstances."""
    vendor_state = str(raw.get("State", {}).get("Name", ""))
    reason = raw.get("StateReason", {})
    code = str(reason.get("Code", ""))
    words = str(reason.get("Message", "")) or str(raw.get("StateTransitionReason", ""))
    tags = tags_of(raw)
    launched_at: datetime | None = raw.get("LaunchTime")
    return Instance(
        provider=AWS,
        id=InstanceId(str(raw["InstanceId"])),
        token=tags.get(MACHINE_TAG) or tags.get("Name", ""),
        state=to_state(vendor_state, code),
        region=region,
        instance_type=str(raw.get("InstanceType", "")),
        public_ip=str(raw.get("PublicIpAddress") or ""),
        spot=raw.get("InstanceLifecycle") == "spot",
        launched_at=launched_at.astimezone(UTC) if launched_at else None,
        usd_per_hour=usd_per_hour,
        reason=words if not code or words.startswith(code) else f"{code}: {words}".rstrip(": "),
        vendor_state=vendor_state,
    )


def to_state(vendor_state: str, reason_code: str = "") -> InstanceState:
    """The contract's state. A terminated machine is GONE whatever ended it; `Instance.reason` has the cause."""
    state = _STATES.get(vendor_state, InstanceState.UNKNOWN)
    if state in (InstanceState.TERMINATING, InstanceState.STOPPING, InstanceState.STOPPED):
        if reason_code in _PREEMPTED:
            return InstanceState.PREEMPTED
        if reason_code in _FAILED:
            return InstanceState.FAILED
    return state


def cluster_filter(cluster: str) -> list[dict[str, Any]]:
    """The filter of DescribeInstances that finds this cluster's machines."""
    return [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}]


def token_filter(token: str) -> list[dict[str, Any]]:
    """The filter of DescribeInstances that finds a machine by its name."""
    return [{"Name": f"tag:{MACHINE_TAG}", "Values": [token]}]


@dataclass(frozen=True, slots=True)
class Image:
    """An AMI and the device name of its root volume."""

    id: str
    root_device: str


def newest_image(rows: Sequence[Mapping[str, Any]]) -> Image | None:
    """The newest available AMI in an answer of DescribeImages; None when there is none."""
    ready = [row for row in rows if row.get("State", "available") == "available"]
    if not ready:
        return None
    best = max(ready, key=lambda row: (str(row.get("CreationDate", "")), str(row["ImageId"])))
    return Image(str(best["ImageId"]), str(best.get("RootDeviceName") or "/dev/sda1"))


def run_parameters(request: LaunchRequest, settings: AwsSettings, image: Image) -> dict[str, Any]:
    """The arguments of RunInstances.

    The client token is the machine's name, which is never used twice; it has at most 63 characters, and EC2 allows 64.
    Tags are set here and not afterwards, because CreateTags may not find a new machine.
    """
    offer = request.offer
    tags = {**settings.tags, **request.tags, "Name": request.token}
    tags |= {CLUSTER_TAG: request.cluster, MACHINE_TAG: request.token}
    tag_list = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
    volume = {"VolumeSize": settings.root_volume_gib, "VolumeType": settings.root_volume_type}
    parameters: dict[str, Any] = {
        "ImageId": image.id,
        "InstanceType": offer.instance_type,
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": request.token,
        "UserData": request.user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "InstanceMetadataTags": "enabled"},
        "TagSpecifications": [{"ResourceType": kind, "Tags": tag_list} for kind in ("instance", "volume")],
        "BlockDeviceMappings": [{"DeviceName": image.root_device, "Ebs": {**volume, "DeleteOnTermination": True}}],
    }
    if offer.zone in settings.subnets:
        parameters["SubnetId"] = settings.subnets[offer.zone]
    elif offer.zone:
        parameters["Placement"] = {"AvailabilityZone": offer.zone}
    if groups := settings.security_groups.get(offer.region):
        parameters["SecurityGroupIds"] = list(groups)
    if settings.key_name:
        parameters["KeyName"] = settings.key_name
    if settings.iam_instance_profile:
        parameters["IamInstanceProfile"] = {"Name": settings.iam_instance_profile}
    if offer.spot:
        spot: dict[str, Any] = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        if settings.spot_max_usd_per_hour is not None:
            spot["MaxPrice"] = f"{settings.spot_max_usd_per_hour:.4f}"
        parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
    return parameters
