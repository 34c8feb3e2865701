"""PURE: what lies on an account of EC2, out of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from shlex import quote
from typing import Any

from meshd.gang_id import machine_at
from meshd.provider_api import CLUSTER_TAG, GANG_TAG, IMAGE_TAG, MACHINE_TAG, Billed, BilledKind
from providers._billed import HOURS_OF_MONTH, moment
from providers.aws.errors import AWS

Row = Mapping[str, Any]

USD_PER_ADDRESS_HOUR = 0.005
"""Of each public IPv4 address, attached or not (aws.amazon.com/vpc/pricing, "Public IPv4 Address")."""


def billed_machine(raw: Row, *, region: str, price: Callable[[str, str], float | None]) -> Billed | None:
    """An instance that has not ended."""
    if raw.get("State", {}).get("Name") in {"terminated", "shutting-down"}:
        return None
    tags, spot = _tags(raw), raw.get("InstanceLifecycle") == "spot"
    machine = tags.get(MACHINE_TAG) or machine_at(tags.get(GANG_TAG, ""), int(raw.get("AmiLaunchIndex") or 0))
    return _billed(
        raw, BilledKind.MACHINE, "InstanceId", region, "terminate-instances --instance-ids", machine=machine,
        usd_per_hour=None if spot else price(region, str(raw.get("InstanceType", ""))), at="LaunchTime",
    )  # fmt: skip


def billed_volume(raw: Row, *, region: str) -> Billed:
    """An EBS volume."""
    holders = [str(one.get("InstanceId")) for one in raw.get("Attachments") or () if one.get("InstanceId")]
    return _billed(
        raw, BilledKind.VOLUME, "VolumeId", region, "delete-volume --volume-id",
        attached_to=holders[0] if holders else "", at="CreateTime",
    )  # fmt: skip


def billed_address(raw: Row, *, region: str) -> Billed:
    """An Elastic IP address."""
    holder = str(raw.get("InstanceId") or raw.get("NetworkInterfaceId") or "")
    return _billed(
        raw, BilledKind.ADDRESS, "AllocationId", region, "release-address --allocation-id", attached_to=holder,
        usd_per_hour=USD_PER_ADDRESS_HOUR,
    )  # fmt: skip


def billed_image(raw: Row, *, region: str) -> Billed:
    """An AMI. What it costs is in its snapshots' rows."""
    return _billed(raw, BilledKind.IMAGE, "ImageId", region, "deregister-image --image-id", at="CreationDate")


def billed_snapshot(raw: Row, *, region: str, usd_per_gib_month: float) -> Billed:
    """A snapshot, at the most that it can cost: EC2 stores less of it."""
    usd = float(raw.get("VolumeSize") or 0) * usd_per_gib_month / HOURS_OF_MONTH
    return _billed(
        raw, BilledKind.SNAPSHOT, "SnapshotId", region, "delete-snapshot --snapshot-id", usd_per_hour=usd,
        at="StartTime",
    )  # fmt: skip


def _billed(raw: Row, kind: BilledKind, id_key: str, region: str, ends: str, *, at: str = "", **more: Any) -> Billed:
    """The part that all have in common. `ends` is the command of AWS's command line that ends it."""
    tags, thing = _tags(raw), str(raw.get(id_key) or raw.get("PublicIp") or "")
    fields: dict[str, Any] = {"machine": tags.get(MACHINE_TAG) or tags.get(IMAGE_TAG, ""), **more}
    return Billed(
        AWS, kind, thing, tags.get("Name") or str(raw.get("Name") or ""), region, tags.get(CLUSTER_TAG, ""),
        created_at=_moment(raw.get(at)) if at else None,
        cure=f"aws ec2 {ends} {quote(thing)} --region {quote(region)}", **fields,
    )  # fmt: skip


def _tags(raw: Row) -> dict[str, str]:
    return {str(tag.get("Key")): str(tag.get("Value")) for tag in raw.get("Tags") or ()}


def _moment(value: Any) -> datetime | None:
    return value if isinstance(value, datetime) else moment(value)
