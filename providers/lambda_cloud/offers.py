"""Offers from Lambda's instance types. PURE: no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from meshd.gpus import normalise, sold_gb
from meshd.provider_api import Offer
from providers.lambda_cloud.errors import LAMBDA
from providers.lambda_cloud.settings import LambdaSettings

_ARM_GPUS = ("gh200", "gb200", "gb300")  # each is on one board with an ARM processor
_DESCRIPTION = re.compile(r"\((\d+)\s*GB")


def to_offers(types: Mapping[str, Any], settings: LambdaSettings, at: datetime) -> list[Offer]:
    """The offers of GET /instance-types.

    A type without free capacity is offered, as not available, only in the regions that the settings name: Lambda does
    not say where else it exists.
    """
    offers: list[Offer] = []
    for name, item in types.items():
        if not any(fnmatchcase(name, pattern) for pattern in settings.instance_types):
            continue
        free = [str(region["name"]) for region in item.get("regions_with_capacity_available") or ()]
        for region in settings.regions or free:
            offers.append(_offer(item["instance_type"], region, region in free, at))
    return offers


def _offer(kind: Mapping[str, Any], region: str, free: bool, at: datetime) -> Offer:
    specs = kind["specs"]
    gpus = int(specs["gpus"])
    words = str(kind.get("gpu_description") or kind.get("description") or "")
    memory = _DESCRIPTION.search(words) or _DESCRIPTION.search(str(kind.get("description", "")))
    return Offer(
        provider=LAMBDA,
        region=region,
        zone="",
        instance_type=str(kind["name"]),
        gpu=_gpu(words, str(kind["name"])) if gpus else "",
        gpus=gpus,
        gpu_memory_gib=sold_gb(int(memory[1]) * 1024) if memory and gpus else 0,
        vcpus=int(specs["vcpus"]),
        memory_mib=int(specs["memory_gib"]) * 1024,
        usd_per_hour=int(kind["price_cents_per_hour"]) / 100,
        arch="arm64" if _gpu(words, str(kind["name"])).startswith(_ARM_GPUS) else "x86_64",
        available=free,
        price_as_of=at,
    )


def _gpu(words: str, name: str) -> str:
    """The GPU model. The description names the form factor more often than the type's name does."""
    from_words, from_name = normalise(words), normalise(name)
    return from_name if from_name.startswith(f"{from_words}-") else from_words or from_name
