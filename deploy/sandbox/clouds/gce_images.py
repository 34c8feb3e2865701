"""Images of the Compute Engine stand-in: images.insert, get, list and delete.

Bodies are those of the Compute API v1. An image takes `image_s` until it is READY. One that cannot be made vanishes:
only the operation of its insert says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from deploy.sandbox.clouds.disk_copy import DiskCopy
from deploy.sandbox.clouds.gce_bodies import BASE, number
from deploy.sandbox.clouds.gce_rules import label_problem, no
from deploy.sandbox.clouds.ledger import Ledger, RentedMachine
from meshd.contract.faults import FaultKind

OWN = "global/images/"
"""The path of the project's own images, as `sourceImage` has it."""
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_DISK = re.compile(r"projects/[^/]+/zones/([^/]+)/disks/([^/]+)")


@dataclass(slots=True)
class StoredImage:
    """One image, or one that could not be made. `layer` is the hypervisor's name for it."""

    name: str
    layer: str
    arch: str
    size_gib: int
    labels: Mapping[str, str]
    description: str
    source_disk: str
    copy: DiskCopy
    operation: str
    deleted: bool = False

    @property
    def id(self) -> str:
        """The 64-bit number as text."""
        return number(f"image/{self.name}/{self.operation}")


@dataclass(slots=True)
class ImageStore:
    """The images of one project.

    Attributes:
        now: UTC.
        image_s: how long an image is pending at least.
        images: all that were ever made, oldest first.
    """

    now: Callable[[], datetime]
    image_s: float = 0.0
    images: list[StoredImage] = field(default_factory=list)
    requests: dict[str, StoredImage] = field(default_factory=dict)

    def insert(
        self, body: Mapping[str, Any], request_id: str, find: Callable[[str, str], tuple[RentedMachine, str, int]],
        ledger: Ledger, *, fails: bool,
    ) -> StoredImage:  # fmt: skip
        """images.insert. The same request id leads to the first image.

        Args:
            body: the request.
            request_id: of the call; "" for none.
            find: the machine of a disk, by zone and the disk's name, with its architecture and the disk's GiB.
            ledger: copies the disk.
            fails: Google cannot make it.
        """
        if request_id in self.requests:
            return self.requests[request_id]
        name = str(body.get("name", ""))
        if not _NAME.fullmatch(name):
            raise no(400, "invalid", f"Invalid value for field 'resource.name': '{name}'.")
        if problem := label_problem(body.get("labels") or {}):
            raise no(400, "invalid", f"Invalid value for field 'resource.labels': {problem}")
        disk = _DISK.search(str(body.get("sourceDisk", "")))
        if disk is None:
            raise no(400, "invalid", "Invalid value for field 'resource.sourceDisk': the URL is malformed.")
        if self.find(name) is not None:
            raise no(409, "alreadyExists", f"The resource 'projects/sandbox/{OWN}{name}' already exists")
        machine, arch, size_gib = find(disk[1], disk[2])
        if not machine.powered_off:
            words = f"The disk resource '{disk[0]}' is already being used by '{machine.token}'"
            raise no(400, "resourceInUseByAnotherResource", words)
        at, times = self.now(), sum(one.name == name for one in self.images)
        image = StoredImage(
            name=name,
            layer=f"{name}-{times}" if times else name,
            arch=arch,
            size_gib=size_gib,
            labels=dict(body.get("labels") or {}),
            description=str(body.get("description", "")),
            source_disk=disk[0],
            copy=DiskCopy(at, at + timedelta(seconds=self.image_s), fails),
            operation=f"operation-image-{len(self.images):06d}",
        )
        self.images.append(image)
        self.requests[request_id or image.operation] = image
        image.copy.begin(ledger, machine, image.layer)
        return image

    def find(self, name: str) -> StoredImage | None:
        """The image with this name that Google shows."""
        return next((one for one in self.shown() if one.name == name), None)

    def shown(self) -> list[StoredImage]:
        """Those that Google shows."""
        return [one for one in self.images if not one.deleted and self.state(one) != "FAILED"]

    def state(self, image: StoredImage) -> str:
        """Google's word for its state; FAILED for one that vanished."""
        return image.copy.state(self.now()).name

    def known(self, name: str) -> StoredImage:
        """The image with this name. Refuses a name that no image has."""
        found = self.find(name)
        if found is None:
            raise no(404, "notFound", f"The resource 'projects/sandbox/{OWN}{name}' was not found")
        return found

    def to_boot(self, source: str, disk_gib: int) -> str:
        """The layer of a `sourceImage`; "" for one of Google's own. Refuses an image that is not ready or too large."""
        if not source.startswith(OWN) or source.startswith(f"{OWN}family/"):
            return ""
        image = self.known(source.removeprefix(OWN))
        if self.state(image) != "READY":
            raise no(400, "resourceNotReady", f"The resource 'projects/sandbox/{source}' is not ready")
        if disk_gib < image.size_gib:
            words = f"Requested disk size cannot be smaller than the image size ({image.size_gib} GB)"
            raise no(400, "invalid", f"Invalid value for field 'resource.disks[0]': {words}")
        return image.layer

    def delete(self, name: str) -> StoredImage:
        """images.delete."""
        image = self.known(name)
        image.deleted = True
        return image

    def body(self, project: str, one: StoredImage, faults: Iterable[FaultKind]) -> dict[str, Any]:
        """The vendor's Image."""
        state = self.state(one)
        body: dict[str, Any] = {
            "kind": "compute#image",
            "id": one.id,
            "name": one.name,
            "description": one.description,
            "creationTimestamp": one.copy.begun_at.isoformat(timespec="milliseconds"),
            "status": "DORMANT" if FaultKind.UNKNOWN_STATE in faults else state,
            "sourceType": "RAW",
            "sourceDisk": f"{BASE}/{one.source_disk}",
            "sourceDiskId": number(one.source_disk),
            "diskSizeGb": str(one.size_gib),
            "architecture": one.arch,
            "labels": dict(one.labels),
            "labelFingerprint": "c2FuZGJveA==",
            "storageLocations": ["us"],
            "selfLink": f"{BASE}/projects/{project}/{OWN}{one.name}",
        }
        if state == "READY":
            body["archiveSizeBytes"] = str(one.size_gib * 1024**3 // 4)
        if FaultKind.UNKNOWN_FIELDS in faults:
            body["novelty"] = {"depth": 1}
        return body

    def operation_body(self, project: str, one: StoredImage, kind: str, *, fresh: bool) -> dict[str, Any]:
        """The vendor's Operation of an insert or a delete; that of an insert tells the failure."""
        failed = kind == "insert" and not fresh and self.state(one) == "FAILED"
        done = failed or (not fresh and self.state(one) != "PENDING")
        name = one.operation if kind == "insert" else f"{one.operation}-delete"
        body: dict[str, Any] = {
            "kind": "compute#operation",
            "id": number(name),
            "name": name,
            "operationType": kind,
            "targetLink": f"{BASE}/projects/{project}/{OWN}{one.name}",
            "targetId": one.id,
            "status": "DONE" if done else "RUNNING",
            "user": "somebody@example.com",
            "progress": 100 if done else 0,
            "insertTime": one.copy.begun_at.isoformat(timespec="milliseconds"),
            "startTime": one.copy.begun_at.isoformat(timespec="milliseconds"),
            "selfLink": f"{BASE}/projects/{project}/global/operations/{name}",
        }
        if failed:
            body |= {"httpErrorStatusCode": 503, "httpErrorMessage": "SERVICE UNAVAILABLE"}
            body["error"] = {"errors": [{"code": "INTERNAL_ERROR", "message": "Internal error. Please try again."}]}
        return body


def matching(images: Sequence[StoredImage], label: tuple[str, str] | None) -> list[StoredImage]:
    """Those with a label, in the order of names, as Google lists them."""
    found = [one for one in images if label is None or one.labels.get(label[0]) == label[1]]
    return sorted(found, key=lambda one: one.name)
