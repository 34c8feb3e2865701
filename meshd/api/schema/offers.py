"""What can be rented: `meshctl offers`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, field_validator

from meshd.api.schema.base import Document, GpuModel, GpusPerNode, Part, Request, Usd, Words
from meshd.api.schema.status import SourceView


class OffersQuery(Request):
    """The query string of GET /v1/offers. A field left out limits nothing; `provider` and `region` may be repeated.

    Attributes:
        gpu: any spelling will do; "h100" also means "h100-sxm".
        gpus_per_node: exactly this number; 0 for machines without GPUs.
        region: regions or zones.
        spot: true for spot only, false for on demand only.
        pods: true for pods only, false for none.
        gpu_memory_min_gib: of one GPU, in GB as it is sold.
        all: show offers that cannot be rented now, too.
        fold: one row for all zones of a region in which a type has the same price and availability.
        refresh: meshd reads the clouds first, for at most about 20 s, and at most every 10 s.
    """

    gpu: GpuModel | None = None
    gpus_per_node: GpusPerNode | None = None
    provider: Words = ()
    region: Words = ()
    spot: bool | None = None
    pods: bool | None = None
    max_usd_per_gpu_hour: Usd | None = None
    gpu_memory_min_gib: Annotated[int, Field(ge=0)] = 0
    arch: Literal["x86_64", "arm64"] | None = None
    all: bool = False
    sort: Literal["price", "provider"] = "price"
    limit: Annotated[int, Field(gt=0, le=100_000)] = 40
    fold: bool = False
    refresh: bool = False

    @field_validator("provider", "region", mode="before")
    @classmethod
    def _one_or_several(cls, words: object) -> object:
        return (words,) if isinstance(words, str) else words


class OfferRow(Part):
    """Something that can be rented now.

    Attributes:
        offer: its key, e.g. "aws/us-east-1a/p5.48xlarge/spot".
        zones: all zones of a folded row.
        available: whether the cloud has free capacity; None when it does not say.
        capacity_hint: in the cloud's own words.
        price_age_s: how old the price is; None when that is not known.
        price_source: `api`, `refreshed`, `shipped` or `settings`: where the price comes from.
        price_stale: too old to rely on for a budget.
        pod: its machines are pods: containers without systemd.
        limits: what they lack, for people; "" when they lack nothing.
        refused: why no pool may rent it, and what would allow it; "" when one may.
        blocked_until: meshd does not rent it before this time, because of `blocked_reason`.
    """

    offer: str
    provider: str
    region: str
    zone: str = ""
    zones: list[str] = []
    instance_type: str
    gpu: str = ""
    gpus: int = 0
    gpu_memory_gib: int = 0
    vcpus: int = 0
    memory_mib: int = 0
    arch: str = ""
    spot: bool = False
    usd_per_hour: float = 0.0
    usd_per_gpu_hour: float = 0.0
    available: bool | None = None
    capacity_hint: str = ""
    price_age_s: float | None = None
    price_source: str = ""
    price_stale: bool = False
    pod: bool = False
    limits: str = ""
    refused: str = ""
    blocked_until: AwareDatetime | None = None
    blocked_reason: str = ""


class NearRow(Part):
    """What would match without one field of an OffersQuery.

    Attributes:
        count: how many offers fail only because of this field.
        offer: the one with the most memory of a GPU where that is the field, else the cheapest.
    """

    field: str
    count: int
    offer: OfferRow


class OffersView(Document):
    """What can be rented, cheapest GPU-hour first, and what is not shown.

    Attributes:
        sources: which provider was read when, or why it could not be: `offers:aws`.
        total: how many offers all providers have together.
        matching: how many of them match the query, shown or not.
        left_out: of the matching ones, how many cannot be rented now and are not shown, by reason.
        near: when nothing matches: what would match without one of the fields.
        gpus, regions: every GPU model and every region that is offered, for completion and to correct a mistyped name.
    """

    at: AwareDatetime
    offers: list[OfferRow] = []
    sources: list[SourceView] = []
    total: int = 0
    matching: int = 0
    left_out: dict[str, int] = {}
    near: list[NearRow] = []
    gpus: list[str] = []
    regions: list[str] = []
