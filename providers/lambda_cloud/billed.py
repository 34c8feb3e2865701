"""PURE: what lies on a Lambda account, out of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any

from meshd.provider_api import CLUSTER_TAG, Billed, BilledKind, InstanceState
from providers._billed import moment
from providers.lambda_cloud.errors import LAMBDA
from providers.lambda_cloud.mapping import to_instance

Row = Mapping[str, Any]
API = 'curl -H "Authorization: Bearer $LAMBDA_API_KEY" https://cloud.lambda.ai/api/v1'


def billed_machine(raw: Row) -> Billed | None:
    """An instance that has not ended."""
    one = to_instance(raw)
    if one.state is InstanceState.GONE or one.state is InstanceState.TERMINATING:
        return None
    tags = {str(tag.get("key")): str(tag.get("value")) for tag in raw.get("tags") or ()}
    body = quote(f'{{"instance_ids": ["{one.id}"]}}')
    return Billed(
        LAMBDA, BilledKind.MACHINE, one.id, str(raw.get("name") or ""), one.region, tags.get(CLUSTER_TAG, ""),
        one.token, created_at=one.launched_at, usd_per_hour=one.usd_per_hour,
        cure=f"{API}/instance-operations/terminate --json {body}",
    )  # fmt: skip


def billed_volume(raw: Row) -> Billed:
    """A file system. It has no tags, and is billed by what is stored on it."""
    region = raw.get("region")
    return Billed(
        LAMBDA, BilledKind.VOLUME, str(raw.get("id") or ""), str(raw.get("name") or ""),
        str(region.get("name") or "") if isinstance(region, dict) else "", created_at=moment(raw.get("created")),
        cure=f"{API}/filesystems/{quote(str(raw.get('id')))} -X DELETE",
    )  # fmt: skip
