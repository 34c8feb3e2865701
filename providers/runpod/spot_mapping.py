"""Spot pods: queries of RunPod's GraphQL API and their answers. PURE: no I/O, no clock.

Source: the schema in the `runpod` SDK 1.12, and RunPod's GraphQL reference. `json.dumps` makes the string literals:
    JSON
and GraphQL have the same escapes, so no value can end its string.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshd.provider_api import Instance, InstanceId, InstanceState, LaunchRequest, Offer
from providers.runpod.errors import RUNPOD
from providers.runpod.mapping import ANYWHERE, launch_body
from providers.runpod.names import SPOT_TAG, PodKind, parse_type, tag_variable
from providers.runpod.settings import RunpodSettings

DEPLOY = "podRentInterruptable"
CUDA_VERSIONS = ("11.8", *(f"12.{minor}" for minor in range(10)), *(f"13.{minor}" for minor in range(4)))
"""GraphQL has no minimum CUDA version, only a list of allowed ones."""

_PLACE = re.compile(r"[A-Za-z0-9-]+")
_STOCK = {"High": True, "Medium": True, "Low": True, "None": False}


@dataclass(frozen=True, slots=True)
class Bid:
    """The lowest bid for a GPU type in one place.

    Attributes:
        usd_per_gpu_hour: the price of one GPU.
        available: whether RunPod has free capacity; None when it does not say.
    """

    usd_per_gpu_hour: float
    available: bool | None


def bids_query(cloud: str, count: int, places: Sequence[str]) -> str:
    """The query for the lowest bids for pods with `count` GPUs in one tier, with an alias for each place.

    Args:
        cloud: "secure" or "community".
        count: GPUs in one pod.
        places: data centres, or `ANYWHERE`.
    """
    parts = []
    for number, place in enumerate(places):
        asked: dict[str, Any] = {"gpuCount": count, "secureCloud": cloud == "secure"}
        if place != ANYWHERE:
            asked["dataCenterId"] = place
        parts.append(f"p{number}: lowestPrice(input: {_literal(asked)}) {{ minimumBidPrice stockStatus }}")
    return f"query {{ gpuTypes {{ id {' '.join(parts)} }} }}"


def bid_places(offers: Iterable[Offer]) -> list[str]:
    """The places to query bids for: those of the offers, each once."""
    return [place for place in dict.fromkeys(offer.region for offer in offers) if _PLACE.fullmatch(place)]


def to_bids(data: Mapping[str, Any], places: Sequence[str]) -> dict[tuple[str, str], Bid]:
    """The bids by (GPU id, place), without types that have no spot price.

    Raises:
        KeyError, TypeError, ValueError: the answer has an unexpected form.
    """
    found: dict[tuple[str, str], Bid] = {}
    for row in data["gpuTypes"]:
        for number, place in enumerate(places):
            price = row.get(f"p{number}") or {}
            usd = float(price.get("minimumBidPrice") or 0)
            if usd > 0 and math.isfinite(usd):
                found[str(row["id"]), place] = Bid(usd, _STOCK.get(str(price.get("stockStatus"))))
    return found


def spot_offers(
    on_demand: Iterable[Offer], bids: Mapping[tuple[str, str], Bid], settings: RunpodSettings
) -> list[Offer]:
    """The spot offers for these on-demand offers, priced at meshd's bid.

    meshd bids the lowest bid plus the margin of the settings, but not more than their limit. There is no offer when the
    lowest bid is above the limit. The bid is the price: RunPod bills what was bid.
    """
    offers: list[Offer] = []
    for offer in on_demand:
        kind = parse_type(offer.instance_type)
        bid = bids.get((kind.id, offer.region)) if kind else None
        limit = settings.spot_max_usd_per_gpu_hour or math.inf
        if bid is None or bid.usd_per_gpu_hour > limit:
            continue
        usd = min(bid.usd_per_gpu_hour * (1 + settings.spot_bid_margin_percent / 100), limit)
        offers.append(
            replace(offer, spot=True, usd_per_hour=round(round(usd, 4) * offer.gpus, 6), available=bid.available)
        )
    return offers


def deploy_mutation(request: LaunchRequest, kind: PodKind, settings: RunpodSettings) -> str:
    """The mutation that rents one spot pod, with the same options as an on-demand pod."""
    body = launch_body(request, kind, settings)
    env = {**body["env"], tag_variable(SPOT_TAG): "1"}
    asked: dict[str, Any] = {
        "bidPerGpu": round(request.offer.usd_per_gpu_hour, 4),
        "name": body["name"],
        "imageName": body["image"],
        "dockerArgs": body["args"],
        "gpuTypeId": kind.id,
        "gpuCount": kind.count,
        "containerDiskInGb": body["disk"],
        "volumeInGb": 0,
        "env": [{"key": key, "value": value} for key, value in env.items()],
    }
    if body["ports"]:
        asked["ports"] = ",".join(body["ports"])
    if request.offer.region != ANYWHERE:
        asked["dataCenterId"] = request.offer.region
    if settings.min_cuda_version:
        asked["allowedCudaVersions"] = [v for v in CUDA_VERSIONS if _number(v) >= _number(settings.min_cuda_version)]
    if settings.registry_id:
        asked["containerRegistryAuthId"] = settings.registry_id
    if settings.start_ssh:
        asked["startSsh"] = True
    for mount in body.get("mounts", {}).get("network", ()):
        asked |= {"networkVolumeId": mount["volumeId"], "volumeMountPath": mount["path"]}
    fields = _literal(asked)[1:-1]
    what = "id costPerHr desiredStatus machine { dataCenterId }"
    return f"mutation {{ {DEPLOY}(input: {{ cloudType: {kind.cloud}, {fields} }}) {{ {what} }} }}"


def to_made(pod: Mapping[str, Any], request: LaunchRequest) -> Instance:
    """The instance for the pod that the mutation created."""
    cost, machine = pod.get("costPerHr"), pod.get("machine")
    place = machine.get("dataCenterId") if isinstance(machine, dict) else None
    return Instance(
        provider=RUNPOD,
        id=InstanceId(str(pod["id"])),
        token=request.token,
        state=InstanceState.BOOTING,
        region=str(place or request.offer.region),
        instance_type=request.offer.instance_type,
        spot=True,
        usd_per_hour=float(cost) if isinstance(cost, int | float) and cost > 0 else request.offer.usd_per_hour,
        vendor_state=str(pod.get("desiredStatus") or ""),
    )


def _literal(value: Any) -> str:
    """A GraphQL literal: JSON, except that field names have no quotes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_literal(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return json.dumps(value)


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
