"""What RunPod makes of a create call on the host: a container with its arguments, environment, limits and ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploy.sandbox import mirror
from deploy.sandbox.hypervisor import Pod
from deploy.sandbox.images import POD, STOCK

CPUS_PER_GPU = 2
MEMORY_GIB_PER_GPU = 8
"""Small pods: the API does not say what a pod has, and the adapter's settings assume this."""
MEMORY_GIB_PER_VCPU = 2
_SYMMETRIC = 70000
"""A port above this asks for one that has the same number inside and outside."""


def public_port(private: int) -> int:
    """The port by which a pod's TCP port is reached from outside."""
    return 10000 + private % 50000


def is_stock(image: str) -> bool:
    """Whether an image is one of RunPod's own, which have nothing of ours.

    Args:
        image: as the create call has it.
    """
    return image.startswith("runpod/")


def image_kind(image: str) -> str:
    """The end of the name of the sandbox's image that stands for an image of a registry.

    Args:
        image: as the create call has it. Any that is not RunPod's stands for deploy/container's.
    """
    return f"{STOCK}{POD}" if is_stock(image) else POD


def pod_of(body: Mapping[str, Any], *, pod_id: str, place: str, gpus: int, api_key: str) -> Pod:
    """The container of a create call.

    Args:
        body: of the call.
        pod_id: the new pod's id.
        place: its data centre.
        gpus: how many GPUs it has.
        api_key: a key that is good for this pod only.
    """
    cpus = CPUS_PER_GPU * gpus if gpus else int(body["cpu"].get("vcpuCount", 2))
    memory_gib = MEMORY_GIB_PER_GPU * gpus if gpus else MEMORY_GIB_PER_VCPU * cpus
    stock = is_stock(str(body["image"]))
    tcp = [int(port.split("/")[0]) for port in body.get("ports", ()) if port.endswith("/tcp")]
    env = {
        "RUNPOD_POD_ID": pod_id,
        "RUNPOD_POD_HOSTNAME": f"{pod_id}-64410",
        "RUNPOD_DC_ID": place,
        "RUNPOD_GPU_COUNT": str(gpus),
        "RUNPOD_CPU_COUNT": str(cpus),
        "RUNPOD_API_KEY": api_key,
        **{f"RUNPOD_TCP_PORT_{port}": str(public_port(port)) for port in tcp},
    }
    return Pod(
        args=str(body.get("args", "")),
        hostname=pod_id[:12],
        env={**env, **body.get("env", {})},
        cpus=cpus,
        memory_mib=memory_gib * 1024,
        ports={public_port(port): port if port <= _SYMMETRIC else public_port(port) for port in tcp},
        address_variable="RUNPOD_PUBLIC_IP",
        names=mirror.names() if stock else {},
        certificate=mirror.certificate()[0] if stock else "",
    )
