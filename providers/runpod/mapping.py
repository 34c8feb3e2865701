"""RunPod's pods, and the create request with its start command. PURE: no I/O, no clock.

Source: RunPod's REST API 2.0.0, and public recordings of its answers.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from meshd.provider_api import CLUSTER_TAG, MACHINE_TAG, Instance, InstanceId, InstanceState, LaunchRequest
from providers._answers import utc_time
from providers.runpod.errors import RUNPOD
from providers.runpod.names import SPOT_TAG, PodKind, kind_of, tag, tag_variable
from providers.runpod.settings import RunpodSettings

SCRIPT = "/meshd-stage1"
IMAGE_START = "/start.sh"

ANYWHERE = "any"
"""The region of an offer whose data centre RunPod chooses."""

_STATES = {
    "PROVISIONING": InstanceState.BOOTING,
    "STARTING": InstanceState.BOOTING,
    "RUNNING": InstanceState.RUNNING,
    "EXITED": InstanceState.STOPPED,
    "ERROR": InstanceState.FAILED,
    "TERMINATED": InstanceState.GONE,
}


def to_state(pod: Mapping[str, Any]) -> InstanceState:
    """The contract's state. RunPod calls a pod RUNNING from its creation on; it runs when it has a `runtime`.

    RunPod preempts a spot pod with SIGTERM and, 5 s later, SIGKILL. The pod then stays as EXITED, a state that meshd
    never asks for.
    """
    state = _STATES.get(str(pod.get("status", "")), InstanceState.UNKNOWN)
    if state is InstanceState.STOPPED and is_spot(pod):
        return InstanceState.PREEMPTED
    return InstanceState.BOOTING if state is InstanceState.RUNNING and not pod.get("runtime") else state


def is_spot(pod: Mapping[str, Any]) -> bool:
    """Whether the pod was rented as spot, by meshd's tag: the REST API does not say."""
    return bool(tag(pod, SPOT_TAG))


def _reason(state: InstanceState, status: str) -> str:
    if state in (InstanceState.BOOTING, InstanceState.RUNNING):
        return ""
    if state is InstanceState.PREEMPTED:
        return f"the spot pod is {status}: RunPod preempted it, or its container ended"
    return f"the pod is {status}"


def to_instance(pod: Mapping[str, Any]) -> Instance:
    """The instance for a pod."""
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
        launched_at=utc_time(pod.get("createdAt")),
        usd_per_hour=float(cost) if isinstance(cost, int | float) else None,
        reason=_reason(state, status),
        vendor_state=status,
    )


def _public_ip(pod: Mapping[str, Any]) -> str:
    """The address of a mapped TCP port. HTTP ports have an internal address of RunPod that cannot be reached."""
    runtime = pod.get("runtime")
    ports = runtime.get("ports") if isinstance(runtime, dict) else None
    for port in ports if isinstance(ports, list) else ():
        if isinstance(port, dict) and port.get("type") == "tcp" and port.get("public") and port.get("ip"):
            return str(port["ip"])
    return ""


def launch_body(request: LaunchRequest, kind: PodKind, settings: RunpodSettings) -> dict[str, Any]:
    """The body of POST /pods. RunPod refuses unknown keys."""
    region = request.offer.region
    tags = {**request.tags, CLUSTER_TAG: request.cluster, MACHINE_TAG: request.token}
    body: dict[str, Any] = {
        "name": request.token,
        "image": (settings.cpu_image or settings.image) if kind.cpu else settings.image,
        "args": start_command(request.user_data, image_start=settings.start_ssh),
        "disk": settings.disk_gib,
        "env": {**settings.env, **{tag_variable(name): value for name, value in sorted(tags.items())}},
        "ports": list(settings.public_ports),
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


def start_command(user_data: str, *, image_start: bool) -> str:
    """The `args` of a pod: become the script `user_data`.

    RunPod has no user data. It splits `args` like a shell's words and passes them to the image's entrypoint, instead of
    the image's own command. Base64 needs no quoting. The shell is replaced by the script, so that these words with
    their secrets do not stay in the process list; the script removes its file and stays up by itself.

    Args:
        user_data: a POSIX shell script.
        image_start: also run the image's start script, in the background.
    """
    script = base64.b64encode(user_data.encode()).decode("ascii")
    steps = ["umask 077", f"echo {script} | base64 -d >{SCRIPT}"]
    if image_start:
        steps.append(f"[ ! -x {IMAGE_START} ] || (umask 022; exec {IMAGE_START}) >/var/log/start.log 2>&1 & true")
    steps.append(f"exec sh {SCRIPT}")
    return f"sh -c '{'; '.join(steps)}'"
