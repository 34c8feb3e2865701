"""Volumes, Elastic IP addresses and regions of the EC2 stand-in, with the shapes of EC2's API reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from xml.sax.saxutils import escape

from deploy.sandbox.clouds.aws_images import paged, reply, tag_set, time_text
from deploy.sandbox.clouds.aws_moto import Reply
from deploy.sandbox.clouds.ledger import Ledger, Life
from deploy.sandbox.clouds.things import Thing, Things
from meshd.contract.faults import FaultKind


def volumes(
    form: Mapping[str, str], region: str, ledger: Ledger, things: Things, faults: Iterable[FaultKind]
) -> Reply:  # fmt: skip
    """DescribeVolumes: the root volume of each instance, and those that no instance has."""
    of_machines = [
        Thing("volume", f"vol-{m.id[2:]}", m.token, m.region, m.created_at, m.tags, m.id)
        for m in ledger.listed()
        if m.life is not Life.ENDED
    ]
    found = [one for one in (*of_machines, *things.of("volume")) if one.region == region]
    return reply("DescribeVolumes", *paged("volumeSet", [_volume(one) for one in found], form, faults))


def addresses(region: str, things: Things) -> Reply:
    """DescribeAddresses."""
    items = "".join(f"<item>{_address(one)}</item>" for one in things.of("address") if one.region == region)
    return reply("DescribeAddresses", f"<addressesSet>{items}</addressesSet>")


ENABLED = (
    "ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-south-1", "ap-southeast-1", "ap-southeast-2",
    "ca-central-1", "eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2", "eu-west-3", "sa-east-1", "us-east-1",
    "us-east-2", "us-west-1", "us-west-2",
)  # fmt: skip
"""The regions that every account has; others are enabled by the account's owner."""


def regions() -> Reply:
    """DescribeRegions without `AllRegions`."""
    items = "".join(
        f"<item><regionName>{name}</regionName><regionEndpoint>ec2.{name}.amazonaws.com</regionEndpoint>"
        "<optInStatus>opt-in-not-required</optInStatus></item>"
        for name in ENABLED
    )
    return reply("DescribeRegions", f"<regionInfo>{items}</regionInfo>")


def _volume(one: Thing) -> str:
    attached = (
        f"<item><volumeId>{one.id}</volumeId><instanceId>{one.attached_to}</instanceId><device>/dev/sda1</device>"
        f"<status>attached</status><attachTime>{time_text(one.created_at)}</attachTime>"
        f"<deleteOnTermination>true</deleteOnTermination></item>"
        if one.attached_to
        else ""
    )
    return (
        f"<volumeId>{one.id}</volumeId><size>{one.size_gib}</size><snapshotId/>"
        f"<availabilityZone>{one.region}a</availabilityZone><status>{'in-use' if attached else 'available'}</status>"
        f"<createTime>{time_text(one.created_at)}</createTime><attachmentSet>{attached}</attachmentSet>"
        f"{tag_set(_named(one))}<volumeType>gp3</volumeType><encrypted>false</encrypted>"
    )


def _address(one: Thing) -> str:
    holder = f"<instanceId>{one.attached_to}</instanceId>" if one.attached_to else ""
    return (
        f"<publicIp>203.0.113.7</publicIp><allocationId>{escape(one.id)}</allocationId><domain>vpc</domain>{holder}"
        f"<networkBorderGroup>{one.region}</networkBorderGroup>{tag_set(_named(one))}"
    )


def _named(one: Thing) -> dict[str, str]:
    return {**({"Name": one.name} if one.name else {}), **one.tags}
