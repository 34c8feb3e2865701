"""Baked images: `meshctl image`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from meshd.api.schema.base import Document, DryRunRequest, Part


class BakeRequest(DryRunRequest):
    """Make an image for the machines of a provider."""

    provider: Annotated[str, Field(min_length=1, max_length=40)]
    pool: Annotated[str, Field(max_length=63)] = Field("", description="for whose machines; empty: the first that fits")
    region: Annotated[str, Field(max_length=40)] = Field("", description="empty: where the pool is cheapest")


class BakeAnswer(Document):
    """What was ordered, or would be.

    Attributes:
        name: of the machine and of the image; "" in a dry run.
    """

    name: str
    provider: str
    region: str
    arch: str
    instance_type: str
    usd_per_hour: float
    pool: str


class ImageRow(Part):
    """An image at a provider, or what is left of one.

    Attributes:
        state: `pending`, `available`, `failed`, `leftover` or `unknown`.
        usd_per_month: the most that it costs; None where that is not known.
        stale: why it should be baked again; "" when it need not.
        newest: machines boot from it, unless the settings name another one.
        machines: those that boot from it.
    """

    id: str
    name: str
    provider: str
    region: str
    arch: str
    state: str
    created_at: AwareDatetime | None = None
    size_gib: int | None = None
    usd_per_month: float | None = None
    slurm: str = ""
    tailscale: str = ""
    stale: str = ""
    newest: bool = False
    machines: list[str] = []
    reason: str = ""


class BakeRow(Part):
    """An image that is being made, or was lately.

    Attributes:
        phase: `installing`, `copying`, `done` or `failed`.
    """

    name: str
    provider: str
    region: str
    arch: str
    phase: str
    since: AwareDatetime
    begun_at: AwareDatetime
    image_id: str = ""
    reason: str = ""


class ImagesView(Document):
    """All images, newest first.

    Attributes:
        unread: providers whose images could not be listed, and why.
    """

    at: AwareDatetime
    images: list[ImageRow] = []
    bakes: list[BakeRow] = []
    unread: list[str] = []


class PruneRequest(DryRunRequest):
    """Delete the images that are neither the newest of their place nor in use, and what is left of others.

    Attributes:
        newest: also the newest ones that are not in use: machines boot from the cloud's own again.
    """

    provider: Annotated[str, Field(max_length=40)] = Field("", description="empty: of all")
    newest: bool = False


class PruneAnswer(Document):
    """What was deleted, or would be.

    Attributes:
        failed: images that could not be deleted, and why.
        unread: as of ImagesView.
    """

    images: list[ImageRow] = []
    failed: list[str] = []
    unread: list[str] = []
