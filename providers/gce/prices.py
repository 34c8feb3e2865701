"""Machine prices from Google's SKUs. PURE: no I/O, no clock.

Google sells cores, memory and GPUs separately: a machine's price is the sum of its parts. Only a SKU's description
says which part it is, e.g. "Spot Preemptible A3 Instance Core running in Iowa", so descriptions are parsed.

Sources: the Cloud Billing Catalog API v1 (Sku, PricingExpression), and SKU descriptions seen in the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from providers.gce.mapping import region_of
from providers.gce.offers import MachineType

Rate = tuple[str, str, bool, float]
"""Region, machine type or accelerator type, spot, USD per hour."""
NOTE = "List prices, [on demand, spot], computed from the SKUs of Google's Cloud Billing Catalog."
CORE, RAM = "core", "ram"
SLICE = " slice"
"""Suffix of an accelerator's name when its SKU includes the GPU's share of the machine."""
_OTHER_DEALS = re.compile(
    r"custom|premium|reserved|commitment|sole.?tenancy|calendar|dws|defined duration|workstation|extended", re.I
)
_SPOT = re.compile(r"^(spot )?preemptible | attached to (spot )?preemptible vms", re.I)
_PLACE = re.compile(r" (running|in) .*$", re.I)
_SHAPE = re.compile(
    r"^(?P<family>[a-z]\d+[a-z]*)( predefined| amd| arm| memory-optimized)*( instance)? (?P<part>core|ram)$"
)
_COMPUTE_OPTIMIZED = re.compile(r"^compute.optimized( instance)? (?P<part>core|ram)$")
_UNITS = {CORE: "h", RAM: "GiBy.h"}
#: Accelerators by SKU description, in lower case, without "nvidia", "tesla" and "gpu".
_ACCELERATORS = {
    "l4": "nvidia-l4",
    "t4": "nvidia-tesla-t4",
    "p4": "nvidia-tesla-p4",
    "p100": "nvidia-tesla-p100",
    "v100": "nvidia-tesla-v100",
    "a100": "nvidia-tesla-a100",
    "a100 80gb": "nvidia-a100-80gb",
    "h100 80gb": "nvidia-h100-80gb",
    "h100 80gb mega": "nvidia-h100-mega-80gb",
    "h100 mega 80gb": "nvidia-h100-mega-80gb",
    "h100 80gb plus": "nvidia-h100-mega-80gb",
    "h200 141gb": "nvidia-h200-141gb",
    "b200": "nvidia-b200",
    "rtx 6000 96gb": "nvidia-rtx-pro-6000",
}
_GPU_NOISE = re.compile(r"\b(nvidia|tesla|gpu)\b")
_SLICE_TEXT = re.compile(r"^[a-z]\d+[a-z]* (?P<gpu>.*?) \(1 gpu slice\)$")
#: Families whose cores and memory have SKUs with another name than the machine types.
_BILLED_AS = {"a3-megagpu-": "a3plus", "a3-ultragpu-": "a3ultra"}
_SHARED_CORE = re.compile(r"^(e2-(micro|small|medium)|f1-micro|g1-small)$")
#: Google rents these only as spot or reserved, although their parts have on-demand SKUs
#: (documentation of accelerator-optimized machines, consumption options).
_NOT_ON_DEMAND = re.compile(r"^(a3-highgpu-[124]g|a3-ultragpu-8g|a4-highgpu-8g)$")


@dataclass(frozen=True, slots=True)
class SkuRate:
    """The price of one part for an hour.

    Attributes:
        part: "core", "ram" (one GiB), or "" for a GPU.
        of: the machine family or accelerator type; with the suffix SLICE when the price includes cores and memory.
    """

    part: str
    of: str
    spot: bool
    regions: tuple[str, ...]
    usd_per_hour: float


def to_rate(sku: Mapping[str, Any], regions: frozenset[str]) -> SkuRate | None:
    """The rate in a SKU; None when it is not part of a plain machine, not sold in `regions`, or free."""
    category = sku.get("category") or {}
    text = str(sku.get("description", ""))
    places = tuple(sorted(regions.intersection(sku.get("serviceRegions") or ())))
    plain = category.get("resourceFamily") == "Compute" and category.get("usageType") in ("OnDemand", "Preemptible")
    if not places or not plain or _OTHER_DEALS.search(text):
        return None
    spot = category.get("usageType") == "Preemptible" or bool(_SPOT.search(text))
    what = _part(_PLACE.sub("", _SPOT.sub("", text)).lower().strip())
    if what is None:
        return None
    usd = _usd_per_hour(sku, _UNITS.get(what[0], "h"))
    return None if usd is None else SkuRate(*what, spot, places, usd)


def _part(words: str) -> tuple[str, str] | None:
    if shape := _SHAPE.match(words):
        return shape["part"], shape["family"]
    if shape := _COMPUTE_OPTIMIZED.match(words):
        return shape["part"], "c2"
    with_share = _SLICE_TEXT.match(words)
    name = " ".join(_GPU_NOISE.sub(" ", with_share["gpu"] if with_share else words).split())
    accelerator = _ACCELERATORS.get(name)
    return None if accelerator is None else ("", accelerator + (SLICE if with_share else ""))


def _usd_per_hour(sku: Mapping[str, Any], unit: str) -> float | None:
    """The last tier of the newest price; None when it has another unit or currency, or is 0."""
    infos = sku.get("pricingInfo") or ()
    expression = (infos[-1].get("pricingExpression") or {}) if infos else {}
    tiers = expression.get("tieredRates") or ()
    price = (tiers[-1].get("unitPrice") or {}) if tiers else {}
    if expression.get("usageUnit") != unit or price.get("currencyCode", "USD") != "USD":
        return None
    usd = int(price.get("units") or 0) + int(price.get("nanos") or 0) / 1e9
    return usd if usd > 0 else None


def machine_rates(kinds: Iterable[MachineType], skus: Iterable[SkuRate]) -> Iterator[Rate]:
    """Prices of whole machine types in their regions, and of attached GPUs.

    Skips a type when one of its parts has no price, and a way to rent that Google does not offer.
    """
    table: dict[tuple[str, str, str, bool], float] = {}
    for sku in skus:
        for region in sku.regions:
            key = (sku.part, sku.of, region, sku.spot)
            table[key] = max(table.get(key, 0.0), sku.usd_per_hour)  # the higher of two, so that a budget holds
    seen: set[tuple[str, str]] = set()
    for kind in kinds:
        region = region_of(kind.zone)
        for spot in (False, True):
            if kind.attached and (card := table.get(("", kind.accelerator, region, spot))) is not None:
                yield region, kind.accelerator, spot, card
            if (kind.base, region) not in seen and (usd := _machine(kind, region, spot, table)) is not None:
                yield region, kind.base, spot, usd
        seen.add((kind.base, region))


def _machine(
    kind: MachineType, region: str, spot: bool, table: Mapping[tuple[str, str, str, bool], float]
) -> float | None:
    if _SHARED_CORE.match(kind.base) or (not spot and _NOT_ON_DEMAND.match(kind.base)):
        return None
    gpus = 0 if kind.attached else kind.gpus
    share = table.get(("", kind.accelerator + SLICE, region, spot)) if gpus else None
    if share is not None:
        return gpus * share
    family = next((name for begin, name in _BILLED_AS.items() if kind.base.startswith(begin)), kind.base.split("-")[0])
    core, ram = (table.get((part, family, region, spot)) for part in (CORE, RAM))
    card = table.get(("", kind.accelerator, region, spot)) if gpus else 0.0
    if core is None or ram is None or card is None:
        return None
    return core * kind.vcpus + ram * kind.memory_mib / 1024 + card * gpus
