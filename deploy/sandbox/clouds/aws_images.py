"""Images and snapshots of the EC2 stand-in: CreateImage, DescribeImages, DescribeSnapshots, Deregister and Delete.

Answers have the shapes of EC2's API reference. An image takes `image_s` until it is available; an image that is
deregistered leaves its snapshot.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from xml.sax.saxutils import escape

from deploy.sandbox.clouds.aws_answers import error_reply, tags_in
from deploy.sandbox.clouds.aws_moto import Reply
from deploy.sandbox.clouds.disk_copy import CopyState, DiskCopy
from deploy.sandbox.clouds.ledger import Ledger, RentedMachine
from meshd.contract.faults import FaultKind
from meshd.contract.standin import SMALL_PAGE

ROOT_GIB = 100
_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_WORDS = {CopyState.PENDING: "pending", CopyState.READY: "available", CopyState.FAILED: "failed"}
_NAME = re.compile(r"[A-Za-z0-9()\[\] ./\-'@_]{3,128}")


class ImageRefused(Exception):
    """An error answer of EC2 about an image."""

    def __init__(self, code: str, message: str) -> None:
        self.reply = error_reply(400, code, message)
        super().__init__(code)


@dataclass(slots=True)
class StoredImage:
    """An image with its snapshot, or what is left of it."""

    id: str
    snapshot_id: str
    region: str
    name: str
    arch: str
    size_gib: int
    copy: DiskCopy
    image_tags: Mapping[str, str]
    snapshot_tags: Mapping[str, str]
    registered: bool = True
    snapshot_there: bool = True
    made_of: str = ""


@dataclass(slots=True)
class ImageStore:
    """The images of one account.

    Attributes:
        now: UTC.
        image_s: how long an image is pending at least.
        images: all that were ever made, oldest first.
    """

    now: Callable[[], datetime]
    image_s: float = 0.0
    images: list[StoredImage] = field(default_factory=list)

    def create(
        self, form: Mapping[str, str], region: str, ledger: Ledger, machine: RentedMachine, arch: str, *, fails: bool
    ) -> Reply:
        """CreateImage."""
        name = form.get("Name", "")
        if not _NAME.fullmatch(name):
            raise ImageRefused("InvalidAMIName.Malformed", "AMI names must be between 3 and 128 characters long")
        if taken := next((one for one in self._registered(region) if one.name == name), None):
            words = f"AMI name {name} is already in use by AMI {taken.id}"
            raise ImageRefused("InvalidAMIName.Duplicate", words)
        digits, now = uuid.uuid4().hex, self.now()
        image = StoredImage(
            f"ami-{digits[:17]}", f"snap-{digits[-17:]}", region, name, arch,
            int(form.get("BlockDeviceMapping.1.Ebs.VolumeSize", ROOT_GIB)),
            DiskCopy(now, now + timedelta(seconds=self.image_s), fails),
            tags_in(form, "image"), tags_in(form, "snapshot"), made_of=machine.id,
        )  # fmt: skip
        self.images.append(image)
        image.copy.begin(ledger, machine, image.id)
        return reply("CreateImage", f"<imageId>{image.id}</imageId>")

    def find(self, region: str, image_id: str) -> StoredImage | None:
        """The registered image with this id."""
        return next((one for one in self._registered(region) if one.id == image_id), None)

    def must_know(self, form: Mapping[str, str], region: str) -> None:
        """Refuse an image or a snapshot that is not there, as the calls that delete them do."""
        image, snapshot = form.get("ImageId", ""), form.get("SnapshotId", "")
        if image and self.find(region, image) is None:
            raise ImageRefused("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
        if snapshot and not any(one.snapshot_there and one.snapshot_id == snapshot for one in self.images):
            raise ImageRefused("InvalidSnapshot.NotFound", f"The snapshot '{snapshot}' does not exist.")

    def to_boot(self, region: str, image_id: str) -> str:
        """The id of the image if it is one of these; "" for others. Refuses one that is gone or not ready."""
        if image_id not in {one.id for one in self.images}:
            return ""
        image = self.find(region, image_id)
        if image is None:
            raise ImageRefused("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
        if self.state(image) != "available":
            raise ImageRefused("InvalidAMIID.Unavailable", f"The image ID '{image_id}' is not available")
        return image.id

    def state(self, image: StoredImage) -> str:
        """EC2's word for its state."""
        return _WORDS[image.copy.state(self.now())]

    def describe(self, form: Mapping[str, str], region: str, faults: Iterable[FaultKind]) -> Reply:
        """DescribeImages."""
        asked = {value for key, value in form.items() if re.fullmatch(r"ImageId\.\d+", key)}
        unknown = asked - {one.id for one in self._registered(region)}
        if unknown:
            raise ImageRefused("InvalidAMIID.NotFound", f"The image id '[{sorted(unknown)[0]}]' does not exist")
        found = [
            one
            for one in self._registered(region)
            if (not asked or one.id in asked) and _matches(form, one.image_tags, {"name": one.name})
        ]
        items = [self._image(one, faults) for one in found]
        return reply("DescribeImages", *paged("imagesSet", items, form, faults))

    def describe_snapshots(self, form: Mapping[str, str], region: str, faults: Iterable[FaultKind]) -> Reply:
        """DescribeSnapshots."""
        found = [
            one
            for one in self.images
            if one.region == region and one.snapshot_there and _matches(form, one.snapshot_tags, {})
        ]
        return reply("DescribeSnapshots", *paged("snapshotSet", [self._snapshot(one) for one in found], form, faults))

    def deregister(self, form: Mapping[str, str], region: str) -> Reply:
        """DeregisterImage."""
        image = self.find(region, form.get("ImageId", ""))
        if image is None:
            raise ImageRefused("InvalidAMIID.NotFound", f"The image id '[{form.get('ImageId')}]' does not exist")
        image.registered = False
        return reply("DeregisterImage", "<return>true</return>")

    def delete_snapshot(self, form: Mapping[str, str], region: str) -> Reply:
        """DeleteSnapshot."""
        asked = form.get("SnapshotId", "")
        image = next((one for one in self.images if one.region == region and one.snapshot_id == asked), None)
        if image is None or not image.snapshot_there:
            raise ImageRefused("InvalidSnapshot.NotFound", f"The snapshot '{asked}' does not exist.")
        if image.registered:
            words = f"The snapshot {asked} is currently in use by {image.id}"
            raise ImageRefused("InvalidSnapshot.InUse", words)
        image.snapshot_there = False
        return reply("DeleteSnapshot", "<return>true</return>")

    def _registered(self, region: str) -> Iterator[StoredImage]:
        return (one for one in self.images if one.region == region and one.registered)

    def _image(self, one: StoredImage, faults: Iterable[FaultKind]) -> str:
        state = self.state(one)
        disk = f"<snapshotId>{one.snapshot_id}</snapshotId>" if state != "pending" else ""
        why = (
            "<stateReason><code>Client.UserInitiatedShutdown</code><message>The snapshot failed</message></stateReason>"
        )
        shown = "dormant" if FaultKind.UNKNOWN_STATE in faults else state
        novelty = "<noveltySet><item>1</item></noveltySet>" if FaultKind.UNKNOWN_FIELDS in faults else ""
        return (
            f"<imageId>{one.id}</imageId><imageLocation>123456789012/{escape(one.name)}</imageLocation>"
            f"<imageState>{shown}</imageState><imageOwnerId>123456789012</imageOwnerId>"
            f"<creationDate>{time_text(one.copy.begun_at)}</creationDate><isPublic>false</isPublic>{novelty}"
            f"<architecture>{one.arch}</architecture><imageType>machine</imageType><name>{escape(one.name)}</name>"
            f"<rootDeviceType>ebs</rootDeviceType><rootDeviceName>/dev/sda1</rootDeviceName>"
            f"<blockDeviceMapping><item><deviceName>/dev/sda1</deviceName><ebs>{disk}"
            f"<volumeSize>{one.size_gib}</volumeSize><deleteOnTermination>true</deleteOnTermination>"
            f"<volumeType>gp3</volumeType><encrypted>false</encrypted></ebs></item></blockDeviceMapping>"
            f"{why if state == 'failed' else ''}<virtualizationType>hvm</virtualizationType>{tag_set(one.image_tags)}"
        )

    def _snapshot(self, one: StoredImage) -> str:
        status = {"pending": "pending", "failed": "error"}.get(self.state(one), "completed")
        return (
            f"<snapshotId>{one.snapshot_id}</snapshotId><volumeId>vol-ffffffff</volumeId><status>{status}</status>"
            f"<startTime>{time_text(one.copy.begun_at)}</startTime><progress>100%</progress><ownerId>123456789012</ownerId>"
            f"<volumeSize>{one.size_gib}</volumeSize>"
            f"<description>Created by CreateImage({one.made_of}) for {one.id}</description>{tag_set(one.snapshot_tags)}"
        )


def _matches(form: Mapping[str, str], tags: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    for key, name in form.items():
        if not re.fullmatch(r"Filter\.\d+\.Name", key):
            continue
        stem = key.removesuffix(".Name")
        values = {value for other, value in form.items() if other.startswith(f"{stem}.Value.")}
        if name.startswith("tag:"):
            has = tags.get(name.removeprefix("tag:"))
        elif name in fields:
            has = fields[name]
        else:
            raise ImageRefused("InvalidParameterValue", f"The filter '{name}' is invalid")
        if has not in values:
            return False
    return True


def paged(element: str, items: Sequence[str], form: Mapping[str, str], faults: Iterable[FaultKind]) -> tuple[str, ...]:
    """The list's element, and the token of the next page where there is one."""
    first = int(form.get("NextToken") or 0)
    small = {FaultKind.SMALL_PAGES, FaultKind.PAGE_FAILS} & set(faults)
    size = SMALL_PAGE if small else int(form.get("MaxResults") or len(items) or 1)
    shown = "".join(f"<item>{item}</item>" for item in items[first : first + size])
    more = f"<nextToken>{first + size}</nextToken>" if first + size < len(items) else ""
    return f"<{element}>{shown}</{element}>", more


def tag_set(tags: Mapping[str, str]) -> str:
    """Tags as EC2 shows them."""
    items = (f"<item><key>{escape(k)}</key><value>{escape(v)}</value></item>" for k, v in tags.items())
    return f"<tagSet>{''.join(items)}</tagSet>" if tags else ""


def time_text(at: datetime) -> str:
    """A time as EC2 shows it."""
    return f"{at:%Y-%m-%dT%H:%M:%S.000Z}"


def reply(action: str, *parts: str) -> Reply:
    """An answer to an action."""
    body = (
        f'<{action}Response xmlns="{_NAMESPACE}"><requestId>00000000-0000-0000-0000-000000000000</requestId>'
        f"{''.join(parts)}</{action}Response>"
    )
    return Reply("200 OK", [("Content-Type", "text/xml")], body.encode())
