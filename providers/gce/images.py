"""Compute Engine's images: labels, the create request, and what a listing shows. PURE: no I/O, no clock.

An image is global: machines of all regions boot from it. Its id is its name, and `global/images/NAME` its path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshd.provider_api import CLUSTER_TAG, IMAGE_TAG, Image, ImageId, ImageRequest, ImageState, Offer
from providers._answers import utc_time
from providers.gce.errors import GCE
from providers.gce.mapping import is_ours, to_label
from providers.gce.settings import GceSettings

LABEL_MAX = 63
_STATES = {"PENDING": ImageState.PENDING, "READY": ImageState.AVAILABLE, "FAILED": ImageState.FAILED}
_ARCHITECTURES = {"X86_64": "x86_64", "ARM64": "arm64"}
_ESCAPED = re.compile(r"_([0-9a-f]{2})")


def named_image(settings: GceSettings, offer: Offer) -> str:
    """The image that the settings name for machines of an offer; "" for none."""
    return settings.images.get(f"{'gpu' if offer.gpus else 'cpu'}/{offer.arch}", "")


def to_escaped(value: str) -> str:
    """A text as a label's value that `of_escaped` reads. Labels have no dots and no capitals: they become _2e, _41.

    What is too long is cut.
    """
    cut = ""
    for character in value:
        part = character if re.fullmatch(r"[a-z0-9-]", character) else f"_{min(ord(character), 255):02x}"
        if len(cut + part) > LABEL_MAX:
            break
        cut += part
    return cut


def of_escaped(label: str) -> str:
    """The text that `to_escaped` was given."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), label)


def image_body(request: ImageRequest, source_disk: str) -> dict[str, Any]:
    """The body of images.insert.

    Args:
        request: the image.
        source_disk: the path of the machine's boot disk.
    """
    tags = {**request.tags, IMAGE_TAG: request.name}
    labels = {to_label(key): to_escaped(value) for key, value in sorted(tags.items())}
    cluster = request.tags.get(CLUSTER_TAG, "")
    return {
        "name": request.name,
        "description": f"{cluster}: a node of Slurm, made by meshd",
        "sourceDisk": source_disk,
        "labels": {**labels, CLUSTER_TAG: to_label(cluster)},
    }


def boot_disk(machine: Mapping[str, Any]) -> str:
    """The path of a machine's boot disk; "" when it has none."""
    url = next((str(disk.get("source", "")) for disk in machine.get("disks") or () if disk.get("boot")), "")
    found = re.search(r"projects/[^/]+/zones/[^/]+/disks/[^/]+$", url)
    return found[0] if found else ""


def is_image_of(raw: Mapping[str, Any], cluster: str) -> bool:
    """Whether an image is this cluster's."""
    return bool(raw.get("name")) and is_ours(raw, cluster)


def to_image(raw: Mapping[str, Any], usd_per_gib_month: float) -> Image:
    """The contract's image. An image whose architecture Google does not say fits no machine."""
    said = str(raw.get("diskSizeGb", ""))
    size_gib = int(said) if re.fullmatch(r"[0-9]{1,9}", said) else None
    tags = {str(key): of_escaped(str(value)) for key, value in (raw.get("labels") or {}).items()}
    return Image(
        provider=GCE,
        id=ImageId(str(raw["name"])),
        name=tags.get(IMAGE_TAG) or str(raw["name"]),
        state=_STATES.get(str(raw.get("status", "")), ImageState.UNKNOWN),
        region="",
        arch=_ARCHITECTURES.get(str(raw.get("architecture", "")), ""),
        created_at=utc_time(raw.get("creationTimestamp")),
        size_gib=size_gib,
        usd_per_month=None if size_gib is None else size_gib * usd_per_gib_month,
        tags=tags,
    )
