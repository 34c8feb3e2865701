"""Which image a machine boots from, which ones are outdated, and which may be deleted. PURE."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from meshd.model.image import PARTS_TAG, SLURM_TAG, Bake
from meshd.provider_api import Image, ImageState, Offer

READY = re.compile(r"^meshd: image ready slurm=([0-9A-Za-z.~+-]{1,40}) tailscale=([0-9A-Za-z.~+-]{1,40})\r?$", re.M)
"""What a machine writes to its console when it is complete."""
FAILED = re.compile(r"^meshd: image failed: ([^\r\n]{1,400})", re.M)
"""What it writes when it gives up."""
_HALF = frozenset({ImageState.FAILED, ImageState.LEFTOVER})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an image should have now.

    Attributes:
        parts: digest of what meshd installs.
        slurm: the head's version; "" while it is not known.
    """

    parts: str
    slurm: str = ""


def newest(images: Iterable[Image], provider: str, region: str, arch: str) -> Image | None:
    """The newest image that machines there can boot from; None when there is none. One without a region is for all."""
    good = (
        one
        for one in images
        if one.state is ImageState.AVAILABLE and (one.provider, one.arch) == (provider, arch)
        and one.region in ("", region)
    )  # fmt: skip
    return max(good, key=lambda one: (one.created_at is not None, one.created_at, one.id), default=None)


def image_for(images: Iterable[Image], offer: Offer) -> str:
    """The id of the image that a machine of this offer boots from; "" for the cloud's own."""
    found = newest(images, offer.provider, offer.region, offer.arch)
    return found.id if found is not None else ""


def stale_words(image: Image, wanted: Wanted) -> str:
    """Why an image should be baked again; "" when it need not."""
    has, parts = image.tags.get(SLURM_TAG, ""), image.tags.get(PARTS_TAG, "")
    if wanted.slurm and has and _release(has) != _release(wanted.slurm):
        return f"it has Slurm {has}, the head {wanted.slurm}"
    return "meshd installs other things by now" if parts != wanted.parts else ""


def _release(version: str) -> str:
    """Major release of Slurm: of 24.11.5-4 it is 24.11."""
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else version


def prunable(
    images: Sequence[Image], used: Collection[str], bakes: Iterable[Bake], *, with_newest: bool = False
) -> Iterator[Image]:
    """The images to delete: not one that a machine runs from or that is being made.

    Args:
        images: all.
        used: ids of those from which a machine has booted that is still there.
        bakes: what is or was being made.
        with_newest: also the newest image of each place.
    """
    making = {bake.name for bake in bakes if bake.active}
    for one in images:
        if one.name in making or one.id in used:
            continue
        best = newest(images, one.provider, one.region, one.arch)
        outdated = best is not None and best.id != one.id
        if one.state in _HALF or (one.state is ImageState.AVAILABLE and (outdated or with_newest)):
            yield one


def half(images: Iterable[Image], bakes: Iterable[Bake]) -> Iterator[Image]:
    """What is of no use and costs money: images that failed, and leftovers. None of one that is being made."""
    making = {bake.name for bake in bakes if bake.active}
    yield from (one for one in images if one.state in _HALF and one.name not in making)
