"""Offers from RunPod's catalogue of GPUs and CPUs. PURE: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from meshd.gpus import normalise, sold_gb
from meshd.provider_api import Offer
from providers.runpod.errors import RUNPOD
from providers.runpod.mapping import ANYWHERE
from providers.runpod.names import PodKind
from providers.runpod.settings import RunpodSettings

_LEVELS = {"NONE": False, "LOW": True, "MEDIUM": True, "HIGH": True}


def gpu_queries(settings: RunpodSettings) -> list[tuple[str, int]]:
    """The queries to the GPU catalogue: (tier, GPUs), because capacity is reported per tier and count."""
    if not settings.gpu_types:
        return []
    return [(cloud, count) for cloud in dict.fromkeys(settings.clouds) for count in dict.fromkeys(settings.gpu_counts)]


def cpu_queries(settings: RunpodSettings) -> list[int]:
    """The queries to the CPU catalogue: vCPUs. Only the secure cloud has CPU pods."""
    if not settings.cpu_types or "secure" not in settings.clouds:
        return []
    return list(dict.fromkeys(settings.cpu_vcpus))


def gpu_offers(
    types: Sequence[Mapping[str, Any]], cloud: str, count: int, settings: RunpodSettings, at: datetime
) -> list[Offer]:
    """The offers of pods with `count` GPUs in one tier."""
    offers: list[Offer] = []
    for raw in types:
        gpu_id, usd = str(raw["id"]), float(raw["price"].get(cloud) or 0)
        wanted = any(fnmatchcase(gpu_id, pattern) for pattern in settings.gpu_types)
        sold = raw.get(cloud) and usd > 0 and count <= int(raw["maxCount"].get(cloud) or 0)
        if raw.get("manufacturer") != "NVIDIA" or not wanted or not sold:
            continue
        kind = PodKind(gpu_id, count, community=cloud == "community")
        offers += [
            Offer(
                provider=RUNPOD,
                region=region,
                zone="",
                instance_type=kind.type_name,
                gpu=normalise(gpu_id),
                gpus=count,
                gpu_memory_gib=sold_gb(int(raw["memory"]) * 1024),
                vcpus=settings.vcpus_per_gpu * count,
                memory_mib=settings.memory_gib_per_gpu * count * 1024,
                usd_per_hour=round(usd * count, 6),
                available=available,
                price_as_of=at,
            )
            for region, available in _places(raw, settings)
        ]
    return offers


def cpu_offers(
    flavours: Sequence[Mapping[str, Any]], vcpus: int, settings: RunpodSettings, at: datetime
) -> list[Offer]:
    """The offers of CPU pods with `vcpus` vCPUs."""
    offers: list[Offer] = []
    for raw in flavours:
        flavour, usd = str(raw["id"]), float(raw["price"].get("securePerVcpu") or 0)
        fits = int(raw["vcpu"]["min"]) <= vcpus <= int(raw["vcpu"]["max"])
        if not fits or usd <= 0 or not any(fnmatchcase(flavour, pattern) for pattern in settings.cpu_types):
            continue
        offers += [
            Offer(
                provider=RUNPOD,
                region=region,
                zone="",
                instance_type=PodKind(flavour, vcpus, cpu=True).type_name,
                gpu="",
                gpus=0,
                gpu_memory_gib=0,
                vcpus=vcpus,
                memory_mib=int(float(raw["ramGbPerVcpu"]) * vcpus * 1024),
                usd_per_hour=round(usd * vcpus, 6),
                available=available,
                price_as_of=at,
            )
            for region, available in _places(raw, settings)
        ]
    return offers


def _places(raw: Mapping[str, Any], settings: RunpodSettings) -> Iterator[tuple[str, bool | None]]:
    """The data centres of a type, each with whether it has free capacity.

    The catalogue has no list when nothing is free. The type is then offered, as not available, in the data centres that
    the settings name. Hosts outside of data centres are offered as one place, `ANYWHERE`.
    """
    shown = {str(place["id"]): _LEVELS.get(str(place["availability"])) for place in raw.get("dataCenters") or ()}
    if settings.data_centers:
        yield from ((place, shown.get(place, False)) for place in dict.fromkeys(settings.data_centers))
    elif shown:
        yield from shown.items()
    elif _LEVELS.get(str(raw.get("availability"))):
        yield ANYWHERE, True
