"""EC2's instances and launch parameters. PURE: no I/O, no clock.

Sources: the EC2 API reference (instance lifecycle, RunInstances idempotency) and the botocore model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from meshd.gang_id import machine_at
from meshd.provider_api import (
    CLUSTER_TAG,
    GANG_TAG,
    IMAGE_TAG,
    MACHINE_TAG,
    GangRequest,
    Image,
    ImageId,
    ImageRequest,
    ImageState,
    Instance,
    InstanceId,
    InstanceState,
    LaunchRequest,
)
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
        "AmiLaunchIndex",
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
        token=_token(tags, raw),
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


def _token(tags: Mapping[str, str], raw: Mapping[str, Any]) -> str:
    """The machine's name. All machines of a gang have the same tags; each has an index of its own in its call."""
    gang = tags.get(GANG_TAG, "")
    own = machine_at(gang, int(raw.get("AmiLaunchIndex", -1))) if gang else tags.get("Name", "")
    return tags.get(MACHINE_TAG) or own


def named_by_index(instance: Instance, raw: Mapping[str, Any], gang: str) -> Instance:
    """The instance of a gang's answer, with the name at its index where EC2 shows none.

    Without its tags no listing finds the instance, so it must not be forgotten: its id is all that is known of it.
    """
    return instance if instance.token else replace(instance, token=machine_at(gang, int(raw.get("AmiLaunchIndex", -1))))


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


def gang_filter(gang: str) -> list[dict[str, Any]]:
    """The filter of DescribeInstances that finds the machines of a gang."""
    return [{"Name": f"tag:{GANG_TAG}", "Values": [gang]}]


@dataclass(frozen=True, slots=True)
class BootImage:
    """An AMI and the device name of its root volume."""

    id: str
    root_device: str


def newest_image(rows: Sequence[Mapping[str, Any]]) -> BootImage | None:
    """The newest available AMI in an answer of DescribeImages; None when there is none."""
    ready = [row for row in rows if row.get("State", "available") == "available"]
    if not ready:
        return None
    best = max(ready, key=lambda row: (str(row.get("CreationDate", "")), str(row["ImageId"])))
    return BootImage(str(best["ImageId"]), str(best.get("RootDeviceName") or "/dev/sda1"))


def run_parameters(request: LaunchRequest, settings: AwsSettings, image: BootImage) -> dict[str, Any]:
    """The arguments of RunInstances for one machine.

    The client token is the machine's name, which is never used twice; it has at most 63 characters, and EC2 allows 64.
    Tags are set here and not afterwards, because CreateTags may not find a new machine.
    """
    tags = {"Name": request.token, MACHINE_TAG: request.token}
    return _run_parameters(request, settings, image, tags, request.token, 1)


def gang_parameters(request: GangRequest, settings: AwsSettings, image: BootImage) -> dict[str, Any]:
    """The arguments of RunInstances for a gang: all machines, or none.

    The client token is a digest of the gang's id, since an id may be longer than EC2 allows.
    """
    token = hashlib.sha256(request.id.encode()).hexdigest()
    tags = {"Name": request.id, GANG_TAG: request.id}
    return _run_parameters(request, settings, image, tags, token, len(request.tokens))


def keeps_off(request: LaunchRequest | GangRequest) -> bool:
    """Whether a machine stays when it powers itself off."""
    return isinstance(request, LaunchRequest) and request.keep_off


def _run_parameters(
    request: LaunchRequest | GangRequest,
    settings: AwsSettings,
    image: BootImage,
    own_tags: Mapping[str, str],
    client_token: str,
    machines: int,
) -> dict[str, Any]:
    offer = request.offer
    tags = {**settings.tags, **request.tags, **own_tags, CLUSTER_TAG: request.cluster}
    tag_list = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
    volume = {"VolumeSize": settings.root_volume_gib, "VolumeType": settings.root_volume_type}
    parameters: dict[str, Any] = {
        "ImageId": image.id,
        "InstanceType": offer.instance_type,
        "MinCount": machines,
        "MaxCount": machines,
        "ClientToken": client_token,
        "UserData": request.user_data,
        "InstanceInitiatedShutdownBehavior": "stop" if keeps_off(request) else "terminate",
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


_IMAGE_STATES = {
    "pending": ImageState.PENDING,
    "transient": ImageState.PENDING,
    "available": ImageState.AVAILABLE,
    "invalid": ImageState.FAILED,
    "failed": ImageState.FAILED,
    "error": ImageState.FAILED,
    "deregistered": ImageState.FAILED,
}


def image_parameters(request: ImageRequest) -> dict[str, Any]:
    """The arguments of CreateImage. An AMI's name is unique in the account and region."""
    tags = {"Name": request.name, **request.tags, IMAGE_TAG: request.name}
    tag_list = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
    return {
        "InstanceId": request.instance.id,
        "Name": request.name,
        "Description": f"{request.tags.get(CLUSTER_TAG, '')}: a node of Slurm, made by meshd",
        "TagSpecifications": [{"ResourceType": kind, "Tags": tag_list} for kind in ("image", "snapshot")],
    }


def to_image(raw: Mapping[str, Any], region: str, usd_per_gib_month: float) -> Image:
    """An image in an answer of DescribeImages."""
    sizes = [int(size) for disk in disks_of(raw) if (size := disk.get("VolumeSize")) is not None]
    size_gib = sum(sizes) if sizes else None
    return Image(
        provider=AWS,
        id=ImageId(str(raw["ImageId"])),
        name=tags_of(raw).get(IMAGE_TAG) or str(raw.get("Name", "")),
        state=_IMAGE_STATES.get(str(raw.get("State", "")), ImageState.UNKNOWN),
        region=region,
        arch=str(raw.get("Architecture") or "x86_64"),
        created_at=_moment(raw.get("CreationDate")),
        size_gib=size_gib,
        usd_per_month=None if size_gib is None else size_gib * usd_per_gib_month,
        tags=tags_of(raw),
        reason=str(raw.get("StateReason", {}).get("Message", "")),
    )


def to_leftover(raw: Mapping[str, Any], region: str, usd_per_gib_month: float) -> Image:
    """A snapshot without its image, in an answer of DescribeSnapshots."""
    size_gib = int(raw["VolumeSize"]) if raw.get("VolumeSize") is not None else None
    return Image(
        provider=AWS,
        id=ImageId(str(raw["SnapshotId"])),
        name=tags_of(raw).get(IMAGE_TAG, ""),
        state=ImageState.LEFTOVER,
        region=region,
        created_at=_moment(raw.get("StartTime")),
        size_gib=size_gib,
        usd_per_month=None if size_gib is None else size_gib * usd_per_gib_month,
        tags=tags_of(raw),
        reason="a snapshot whose image is deleted",
    )


def leftovers(
    images: Sequence[Mapping[str, Any]], snapshots: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """The snapshots that belong to no image, neither by its disks nor by its name: a new image lists no disks yet."""
    used = {str(disk.get("SnapshotId", "")) for image in images for disk in disks_of(image)}
    names = {tags_of(image).get(IMAGE_TAG, "") for image in images}
    return [one for one in snapshots if str(one["SnapshotId"]) not in used and tags_of(one).get(IMAGE_TAG) not in names]


def disks_of(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The disks of an image that are snapshots."""
    return [one["Ebs"] for one in raw.get("BlockDeviceMappings", []) if "Ebs" in one]


def _moment(value: Any) -> datetime | None:
    """DescribeImages gives a text, DescribeSnapshots a time."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return at.astimezone(UTC) if isinstance(at, datetime) and at.tzinfo else None
