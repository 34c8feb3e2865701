"""Between Lambda's words and the contract's. PURE: no I/O, no clock.

Source: Lambda Cloud API 1.10.0. Errors are told apart by their code alone; the words may change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from meshd.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
    Uncertain,
)
from meshd.gpus import normalise
from meshd.provider_api import Instance, InstanceId, InstanceState, LaunchRequest, Offer, ProviderName
from providers._answers import Answer
from providers.lambda_cloud.settings import LambdaSettings

LAMBDA = ProviderName("lambda")
CLUSTER_TAG = "meshd-cluster"
MACHINE_TAG = "meshd-machine"

_STATES = {
    "booting": InstanceState.BOOTING,
    "active": InstanceState.RUNNING,
    "unhealthy": InstanceState.FAILED,
    "terminating": InstanceState.TERMINATING,
    "terminated": InstanceState.GONE,
    "preempted": InstanceState.PREEMPTED,
}
_CODES: dict[str, type[ProviderError]] = {
    "instance-operations/launch/insufficient-capacity": NoCapacity,
    "instance-operations/launch/file-system-in-wrong-region": InvalidRequest,
    "global/quota-exceeded": QuotaExceeded,
    "global/invalid-parameters": InvalidRequest,
    "global/duplicate": InvalidRequest,
    "global/object-does-not-exist": NotFound,
    "global/not-found": NotFound,
    "global/invalid-api-key": AuthFailed,
    "global/account-inactive": AuthFailed,
    "global/invalid-address": AuthFailed,
    "global/forbidden": AuthFailed,
    "global/conflict": Transient,
}
_ARM_GPUS = ("gh200", "gb200", "gb300")  # each sits on one board with an ARM processor
_DESCRIPTION = re.compile(r"\((\d+)\s*GB")
_TAG_KEY = re.compile(r"[a-z][a-z0-9-:]+")


def to_error(answer: Answer, *, operation: str, changes: bool) -> ProviderError:
    """The contract's error for an answer that is no success.

    Args:
        answer: what the cloud answered.
        operation: the contract's name of the call.
        changes: the call may have made or ended a machine.
    """
    detail = answer.body.get("error") if isinstance(answer.body, dict) else None
    detail = detail if isinstance(detail, dict) else {}
    code = str(detail.get("code", ""))
    words = " ".join(str(detail[key]) for key in ("message", "suggestion") if detail.get(key))
    said = f"{code}: {words}" if code else f"HTTP {answer.status} without an error code"
    if answer.status == 429:
        return RateLimited(
            said, retry_after_s=answer.retry_after_s, provider=LAMBDA, operation=operation, vendor_text=answer.text
        )
    kind = _kind(answer.status, code, operation, changes)
    return kind(said, provider=LAMBDA, operation=operation, vendor_text=said if code else answer.text)


def _kind(status: int, code: str, operation: str, changes: bool) -> type[ProviderError]:
    doubt: type[ProviderError] = Uncertain if changes else Transient
    if status >= 500 or code.startswith("provider/") or not code or code in ("global/internal-error", "global/unknown"):
        return AuthFailed if status in (401, 403) else doubt
    kind = _CODES.get(code)
    if kind is NotFound and operation == "launch":
        return InvalidRequest  # something that the request names: the key, the image, the type
    if kind is not None:
        return kind
    return {401: AuthFailed, 403: AuthFailed, 404: NotFound, 409: Transient}.get(status, InvalidRequest)


def to_state(status: str) -> InstanceState:
    """The contract's state."""
    return _STATES.get(status, InstanceState.UNKNOWN)


def tags_of(raw: Mapping[str, Any]) -> dict[str, str]:
    """The tags of an instance."""
    return {str(tag["key"]): str(tag.get("value", "")) for tag in raw.get("tags") or ()}


def to_instance(raw: Mapping[str, Any]) -> Instance:
    """One instance of GET /instances. Lambda does not tell when it was launched."""
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
    """Whether an instance carries this cluster's tag. A name alone proves nothing: people name things alike."""
    return tags_of(raw).get(CLUSTER_TAG) == cluster


def terminate_blocked(raw: Mapping[str, Any]) -> str:
    """Why the instance cannot be terminated now, from `actions.terminate`; "" when it can."""
    action = (raw.get("actions") or {}).get("terminate") or {}
    if action.get("available", True):
        return ""
    return str(action.get("reason_code") or action.get("reason_description") or "not available")


def to_offers(types: Mapping[str, Any], settings: LambdaSettings, at: datetime) -> list[Offer]:
    """The offers of GET /instance-types.

    A type without room is offered, as not available, only in the regions that the settings name: Lambda does not tell
    where else it exists.
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
        gpu_memory_gib=int(memory[1]) if memory and gpus else 0,
        vcpus=int(specs["vcpus"]),
        memory_mib=int(specs["memory_gib"]) * 1024,
        usd_per_hour=int(kind["price_cents_per_hour"]) / 100,
        arch="arm64" if _gpu(words, str(kind["name"])).startswith(_ARM_GPUS) else "x86_64",
        available=free,
        price_as_of=at,
    )


def _gpu(words: str, name: str) -> str:
    """The description tells the form factor better than the type's name does, which may leave it out."""
    from_words, from_name = normalise(words), normalise(name)
    return from_name if from_name.startswith(f"{from_words}-") else from_words or from_name


def launch_body(request: LaunchRequest, settings: LambdaSettings, ssh_key_name: str) -> dict[str, Any]:
    """The body of POST /instance-operations/launch.

    Tags are cut to what Lambda takes: keys of its alphabet, values of at most 128 characters.
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
        InvalidRequest: there is none, or more than one; the text names the setting to use.
    """
    names = [str(key["name"]) for key in keys]
    if len(names) == 1:
        return names[0]
    found = f"has {len(names)} ({', '.join(sorted(names)[:8])})" if names else "has none: add one to it"
    text = f"Lambda wants exactly one SSH key and the account {found}; set providers.lambda.ssh_key_name"
    raise InvalidRequest(text, provider=LAMBDA, operation=operation)
