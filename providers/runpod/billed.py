"""PURE: what lies on a RunPod account, out of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any

from meshd.provider_api import CLUSTER_TAG, Billed, BilledKind, InstanceState
from providers.runpod.errors import RUNPOD
from providers.runpod.mapping import to_instance
from providers.runpod.names import tag

Row = Mapping[str, Any]
DELETE = 'curl -X DELETE -H "Authorization: Bearer $RUNPOD_API_KEY" https://api.runpod.io/v2'


def billed_machine(raw: Row) -> Billed | None:
    """A pod that was not deleted; the disk of a stopped one costs money too."""
    one = to_instance(raw)
    if one.state is InstanceState.GONE:
        return None
    return Billed(
        RUNPOD, BilledKind.MACHINE, one.id, str(raw.get("name") or ""), one.region, tag(raw, CLUSTER_TAG), one.token,
        created_at=one.launched_at, usd_per_hour=one.usd_per_hour, cure=f"{DELETE}/pods/{quote(one.id)}",
    )  # fmt: skip


def billed_volume(raw: Row) -> Billed:
    """A network volume. It has no tags and no time."""
    volume_id, name = str(raw.get("id") or ""), str(raw.get("name") or "")
    return Billed(
        RUNPOD, BilledKind.VOLUME, volume_id, name, str(raw.get("dataCenter") or ""), machine=name,
        cure=f"{DELETE}/network-volumes/{quote(volume_id)}",
    )  # fmt: skip
