"""Offers from EC2's instance types and spot prices. PURE: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from meshd.gpus import normalise, sold_gb
from meshd.provider_api import Offer
from providers._prices import Price
from providers.aws.errors import AWS


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A row of DescribeInstanceTypes.

    Attributes:
        gpu: the normalised model; "" for none.
        gpus: the number of whole GPUs.
    """

    name: str
    gpu: str
    gpus: int
    gpu_memory_gib: int
    vcpus: int
    memory_mib: int
    arch: str
    spot: bool
    on_demand: bool


def to_instance_type(raw: Mapping[str, Any]) -> InstanceType | None:
    """A type that meshd can use; None when it has a fraction of a GPU, or GPUs that are not from NVIDIA."""
    gpus = raw.get("GpuInfo", {}).get("Gpus", [])
    gpu = gpus[0] if gpus else {}
    if gpu and (gpu.get("GpuPartitionSize", 1.0) < 1.0 or gpu.get("Manufacturer", "NVIDIA").upper() != "NVIDIA"):
        return None
    usage = raw.get("SupportedUsageClasses", ["on-demand"])
    architectures = raw.get("ProcessorInfo", {}).get("SupportedArchitectures", ["x86_64"])
    name = str(raw["InstanceType"])
    model = (normalise(name) or normalise(str(gpu.get("Name", "")))) if gpu else ""
    return InstanceType(
        name=name,
        gpu=model,
        gpus=sum(int(g.get("Count", 0)) for g in gpus),
        gpu_memory_gib=sold_gb(gpu.get("MemoryInfo", {}).get("SizeInMiB", 0), model) if gpu else 0,
        vcpus=int(raw["VCpuInfo"]["DefaultVCpus"]),
        memory_mib=int(raw["MemoryInfo"]["SizeInMiB"]),
        arch="arm64" if "arm64" in architectures else "x86_64",
        spot="spot" in usage,
        on_demand="on-demand" in usage,
    )


def to_offer(kind: InstanceType, region: str, zone: str, price: Price, *, spot: bool) -> Offer:
    """The offer of a type in a zone. EC2 does not report free capacity."""
    return Offer(
        provider=AWS,
        region=region,
        zone=zone,
        instance_type=kind.name,
        gpu=kind.gpu,
        gpus=kind.gpus,
        gpu_memory_gib=kind.gpu_memory_gib,
        vcpus=kind.vcpus,
        memory_mib=kind.memory_mib,
        usd_per_hour=price.usd_per_hour,
        spot=spot,
        arch=kind.arch,
        available=None,
        price_as_of=price.as_of,
        price_source=price.source,
    )


def spot_prices(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """The newest spot price by (type, zone), from an answer of DescribeSpotPriceHistory."""
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for row in rows:
        key = (str(row["InstanceType"]), str(row["AvailabilityZone"]))
        at, price = row["Timestamp"], float(row["SpotPrice"])
        if key not in newest or at > newest[key][0]:
            newest[key] = (at, price)
    return {key: price for key, (_, price) in newest.items()}
