"""Between RunPod's words and the contract's. PURE: no I/O, no clock.

Source: RunPod's REST API 2.0.0, and public recordings of its answers. Errors are RFC 9457 problems; most are told apart
by the status. A create that finds no room is a plain 400, told apart only by its words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
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
from meshd.provider_api import Instance, InstanceId, InstanceState, LaunchRequest, ProviderName
from providers._answers import Answer
from providers.runpod.command import start_command
from providers.runpod.names import CLUSTER_TAG, MACHINE_TAG, SPOT_TAG, PodKind, kind_of, tag, tag_variable
from providers.runpod.settings import RunpodSettings

RUNPOD = ProviderName("runpod")
ANYWHERE = "any"
"""The region of an offer whose data centre RunPod chooses."""
RETIRED = "RunPod has retired this API: a newer release of meshd is needed"

_STATES = {
    "PROVISIONING": InstanceState.BOOTING,
    "STARTING": InstanceState.BOOTING,
    "RUNNING": InstanceState.RUNNING,
    "EXITED": InstanceState.STOPPED,
    "ERROR": InstanceState.FAILED,
    "TERMINATED": InstanceState.GONE,
}
NO_CAPACITY_WORDS = re.compile(
    r"no longer any instances|no instances|capacity|not available|unavailable|out of stock|could not be placed", re.I
)
_LIMITED = re.compile(r"\bpool\b|spend(ing)? limit|quota", re.I)
_BY_STATUS: dict[int, type[ProviderError]] = {409: Transient, 408: Transient, 425: Transient}
_SECRET_LOOKING = re.compile(r"[A-Za-z0-9+/=_-]{40,}")


def clean(text: str) -> str:
    """A vendor's text without long unbroken runs: a refusal may repeat the start command, which holds secrets."""
    return _SECRET_LOOKING.sub("[...]", text)


def to_error(answer: Answer, *, operation: str, changes: bool) -> ProviderError:
    """The contract's error for an answer that is no success.

    Args:
        answer: what the cloud answered.
        operation: the contract's name of the call.
        changes: the call may have made or ended a pod.
    """
    body = answer.body if isinstance(answer.body, dict) else {}
    problem = body if body.get("detail") or body.get("title") else None
    words = clean(_words(problem)) if problem else ""
    vendor_text = words or clean(answer.text)
    said = f"HTTP {answer.status}: {words or 'no problem document'}"
    if answer.status == 429:
        return RateLimited(
            said, retry_after_s=answer.retry_after_s, provider=RUNPOD, operation=operation, vendor_text=vendor_text
        )
    if answer.status == 410:
        return InvalidRequest(f"{RETIRED} ({said})", provider=RUNPOD, operation=operation, vendor_text=vendor_text)
    kind = _kind(answer.status, words, operation, changes)
    return kind(said, provider=RUNPOD, operation=operation, vendor_text=vendor_text)


def _words(problem: Mapping[str, Any]) -> str:
    errors = problem.get("errors")
    more = [str(error) for error in errors] if isinstance(errors, list) else []
    return " ".join([str(problem.get("detail") or problem.get("title")), *more])


def _kind(status: int, words: str, operation: str, changes: bool) -> type[ProviderError]:
    doubt: type[ProviderError] = Uncertain if changes else Transient
    launch = operation == "launch"
    if status in (401, 402, 403):
        # 403 on create: "Your account cannot access the requested pool"; of the key or the account otherwise.
        return QuotaExceeded if launch and status != 401 and _LIMITED.search(words) else AuthFailed
    if status >= 500 or not words:
        return doubt
    if status == 404:
        return NotFound if operation in ("get", "terminate") else InvalidRequest
    if status == 400 and launch:
        if _LIMITED.search(words):
            return QuotaExceeded
        return NoCapacity if NO_CAPACITY_WORDS.search(words) else InvalidRequest
    return _BY_STATUS.get(status, InvalidRequest)


def to_state(pod: Mapping[str, Any]) -> InstanceState:
    """The contract's state. A pod is called RUNNING from its creation on; only with a `runtime` does it run.

    RunPod takes a spot pod back with SIGTERM and, 5 s later, SIGKILL; it stays as EXITED, which meshd itself never
    asks for.
    """
    state = _STATES.get(str(pod.get("status", "")), InstanceState.UNKNOWN)
    if state is InstanceState.STOPPED and is_spot(pod):
        return InstanceState.PREEMPTED
    return InstanceState.BOOTING if state is InstanceState.RUNNING and not pod.get("runtime") else state


def is_spot(pod: Mapping[str, Any]) -> bool:
    """Whether it was rented as spot, by our mark: REST does not tell."""
    return bool(tag(pod, SPOT_TAG))


def _reason(state: InstanceState, status: str) -> str:
    if state in (InstanceState.BOOTING, InstanceState.RUNNING):
        return ""
    if state is InstanceState.PREEMPTED:
        return f"the spot pod is {status}: RunPod took it back, or its container ended"
    return f"the pod is {status}"


def to_instance(pod: Mapping[str, Any]) -> Instance:
    """One pod."""
    status, state, kind = str(pod.get("status", "")), to_state(pod), kind_of(pod)
    elsewhere = ANYWHERE if kind and kind.community else ""
    cost = pod.get("cost")
    return Instance(
        provider=RUNPOD,
        id=InstanceId(str(pod["id"])),
        token=tag(pod, MACHINE_TAG) or str(pod.get("name") or ""),
        state=state,
        region=str(pod.get("dataCenterId") or elsewhere),
        instance_type=kind.type_name if kind else "",
        public_ip=_public_ip(pod),
        spot=is_spot(pod),
        launched_at=_time(pod.get("createdAt")),
        usd_per_hour=float(cost) if isinstance(cost, int | float) else None,
        reason=_reason(state, status),
        vendor_state=status,
    )


def _public_ip(pod: Mapping[str, Any]) -> str:
    """The address of a mapped TCP port. HTTP ports show an inner address of RunPod's that leads nowhere."""
    runtime = pod.get("runtime")
    ports = runtime.get("ports") if isinstance(runtime, dict) else None
    for port in ports if isinstance(ports, list) else ():
        if isinstance(port, dict) and port.get("type") == "tcp" and port.get("public") and port.get("ip"):
            return str(port["ip"])
    return ""


def _time(text: Any) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at if at.tzinfo else None


def launch_body(request: LaunchRequest, kind: PodKind, settings: RunpodSettings) -> dict[str, Any]:
    """The body of POST /pods. RunPod refuses keys that it does not know."""
    region = request.offer.region
    tags = {**request.tags, CLUSTER_TAG: request.cluster, MACHINE_TAG: request.token}
    body: dict[str, Any] = {
        "name": request.token,
        "image": (settings.cpu_image or settings.image) if kind.cpu else settings.image,
        "args": start_command(request.user_data, image_start=settings.start_ssh),
        "disk": settings.disk_gib,
        "env": {**settings.env, **{tag_variable(name): value for name, value in sorted(tags.items())}},
        "ports": list(settings.ports),
        "cloud": kind.cloud,
    }
    if region != ANYWHERE:
        body["dataCenterIds"] = [region]
    if kind.cpu:
        body["cpu"] = {"id": kind.id, "vcpuCount": kind.count}
    else:
        body["gpu"] = {"id": kind.id, "count": kind.count}
        if settings.min_cuda_version:
            body["gpu"]["minCudaVersion"] = settings.min_cuda_version
        if settings.global_networking:
            body["globalNetworking"] = True
    if settings.registry_id:
        body["registry"] = settings.registry_id
    if settings.start_ssh:
        body["startSsh"] = True
    if region in settings.network_volumes:
        volume = {"volumeId": settings.network_volumes[region], "path": settings.network_volume_path}
        body["mounts"] = {"network": [volume]}
    return body
