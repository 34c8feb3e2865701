"""Lambda's instances and the launch request. PURE: no I/O, no clock.

Source: Lambda Cloud API 1.10.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from meshd.errors import InvalidRequest
from meshd.provider_api import CLUSTER_TAG, MACHINE_TAG, Instance, InstanceId, InstanceState, LaunchRequest
from providers.lambda_cloud.errors import LAMBDA
from providers.lambda_cloud.settings import LambdaSettings

_STATES = {
    "booting": InstanceState.BOOTING,
    "active": InstanceState.RUNNING,
    "unhealthy": InstanceState.FAILED,
    "terminating": InstanceState.TERMINATING,
    "terminated": InstanceState.GONE,
    "preempted": InstanceState.PREEMPTED,
}
_TAG_KEY = re.compile(r"[a-z][a-z0-9-:]+")


def to_state(status: str) -> InstanceState:
    """The contract's state."""
    return _STATES.get(status, InstanceState.UNKNOWN)


def tags_of(raw: Mapping[str, Any]) -> dict[str, str]:
    """The tags of an instance."""
    return {str(tag["key"]): str(tag.get("value", "")) for tag in raw.get("tags") or ()}


def to_instance(raw: Mapping[str, Any]) -> Instance:
    """The instance for a row of GET /instances. Lambda has no launch time."""
    status = str(raw.get("status", ""))
    kind = raw.get("instance_type") or {}
    cents = kind.get("price_cents_per_hour")
    return Instance(
        provider=LAMBDA,
        id=InstanceId(str(raw["id"])),
        token=tags_of(raw).get(MACHINE_TAG) or str(raw.get("name") or ""),
        state=to_state(status),
        region=str((raw.get("region") or {}).get("name", "")),
        instance_type=str(kind.get("name", "")),
        public_ip=str(raw.get("ip") or ""),
        usd_per_hour=None if cents is None else cents / 100,
        reason=_reason(raw, status),
        vendor_state=status,
    )


def _reason(raw: Mapping[str, Any], status: str) -> str:
    restart = (raw.get("actions") or {}).get("restart") or {}
    return "" if status in ("active", "booting") else str(restart.get("reason_description") or status)


def is_ours(raw: Mapping[str, Any], cluster: str) -> bool:
    """Whether an instance has this cluster's tag. A name alone proves nothing: people may use the same names."""
    return tags_of(raw).get(CLUSTER_TAG) == cluster


def terminate_blocked(raw: Mapping[str, Any]) -> str:
    """Why the instance cannot be terminated now, from `actions.terminate`; "" when it can be."""
    action = (raw.get("actions") or {}).get("terminate") or {}
    if action.get("available", True):
        return ""
    return str(action.get("reason_code") or action.get("reason_description") or "not available")


def launch_body(request: LaunchRequest, settings: LambdaSettings, ssh_key_name: str) -> dict[str, Any]:
    """The body of POST /instance-operations/launch.

    Only tags that Lambda accepts are sent: keys in its alphabet, and values cut to 128 characters.
    """
    tags = {**settings.tags, **request.tags, CLUSTER_TAG: request.cluster, MACHINE_TAG: request.token}
    usable = {key: value[:128] for key, value in sorted(tags.items()) if _TAG_KEY.fullmatch(key) and len(key) <= 55}
    body: dict[str, Any] = {
        "region_name": request.offer.region,
        "instance_type_name": request.offer.instance_type,
        "ssh_key_names": [ssh_key_name],
        "name": request.token,
        "hostname": request.token,
        "user_data": request.user_data,
        "tags": [{"key": key, "value": value} for key, value in usable.items()],
    }
    if settings.image_id:
        body["image"] = {"id": settings.image_id}
    elif settings.image_family:
        body["image"] = {"family": settings.image_family}
    return body


def only_key(keys: Sequence[Mapping[str, Any]], operation: str = "launch") -> str:
    """The name of the account's only SSH key.

    Raises:
        InvalidRequest: there is none, or more than one; the text names the setting to change.
    """
    names = [str(key["name"]) for key in keys]
    if len(names) == 1:
        return names[0]
    found = f"has {len(names)} ({', '.join(sorted(names)[:8])})" if names else "has none: add one to it"
    text = f"Lambda needs one SSH key, and the account {found}; set providers.lambda.ssh_key_name"
    raise InvalidRequest(text, provider=LAMBDA, operation=operation)
