"""Offers out of tables that ship with an adapter: the shapes of types, and prices. PURE but for reading them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources

from meshd.gpus import normalise
from meshd.provider_api import Offer, ProviderName
from providers._prices import Price


@dataclass(frozen=True, slots=True)
class Shape:
    """One instance type, as the table describes it."""

    name: str
    gpu: str
    gpus: int
    gpu_memory_gib: int
    vcpus: int
    memory_gib: float
    arch: str = "x86_64"


def shapes(package: str, patterns: Sequence[str]) -> Iterator[Shape]:
    """The types of an adapter's `shapes.json` that the settings name."""
    table = json.loads(resources.files(package).joinpath("shapes.json").read_text("utf-8"))
    for name, (gpu, gpus, gpu_memory_gib, vcpus, memory_gib, *arch) in table["types"].items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            yield Shape(name, normalise(gpu) if gpu else "", gpus, gpu_memory_gib, vcpus, memory_gib, *arch)


def to_offer(provider: ProviderName, region: str, shape: Shape, price: Price, *, spot: bool = False) -> Offer:
    """The offer of a type in a region. No zone: a table does not know which of them have it."""
    return Offer(
        provider=provider, region=region, zone="", instance_type=shape.name, gpu=shape.gpu, gpus=shape.gpus,
        gpu_memory_gib=shape.gpu_memory_gib, vcpus=shape.vcpus, memory_mib=int(shape.memory_gib * 1024),
        usd_per_hour=price.usd_per_hour, spot=spot, arch=shape.arch, price_as_of=price.as_of,
        price_source=price.source,
    )  # fmt: skip
