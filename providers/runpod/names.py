"""Names of instance types, and meshd's tags on a pod. PURE: no I/O, no clock.

RunPod has no instance types: a pod has a number of GPUs of a type, or of vCPUs of a flavour, in a tier. The adapter's
type names contain all of it: "8x_NVIDIA_H100_80GB_HBM3", "1x_NVIDIA_A40@community", "16vcpu_cpu5c".

RunPod has no tags either. meshd uses environment variables of the container; the API returns them with each pod.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshd.provider_api import CLUSTER_TAG

TAG_PREFIX = "MESHD_TAG_"
SPOT_TAG = "meshd-spot"

_TYPE = re.compile(r"([1-9]\d*)(x|vcpu)_(\S+?)(@community)?")
_ENV_UNSAFE = re.compile(r"[^A-Z0-9]")
_ESCAPED = {"%": "%25", "_": "%5F", "@": "%40"}


@dataclass(frozen=True, slots=True)
class PodKind:
    """A pod's hardware and tier.

    Attributes:
        id: RunPod's id of the GPU type or CPU flavour.
        count: the number of GPUs or vCPUs.
        cpu: whether it is a CPU pod.
        community: in the community cloud, not the secure one.
    """

    id: str
    count: int
    cpu: bool = False
    community: bool = False

    @property
    def cloud(self) -> str:
        """RunPod's name of the tier."""
        return "COMMUNITY" if self.community else "SECURE"

    @property
    def type_name(self) -> str:
        """The instance type's name, without spaces."""
        escaped = "".join(_ESCAPED.get(char, char) for char in self.id).replace(" ", "_")
        return f"{self.count}{'vcpu' if self.cpu else 'x'}_{escaped}{'@community' if self.community else ''}"


def parse_type(name: str) -> PodKind | None:
    """The reverse of `PodKind.type_name`; None when the name is not such a type."""
    match = _TYPE.fullmatch(name)
    if match is None:
        return None
    plain = match[3].replace("_", " ")
    for char, escape in reversed(_ESCAPED.items()):
        plain = plain.replace(escape, char)
    return PodKind(plain, int(match[1]), match[2] == "vcpu", match[4] is not None)


def kind_of(pod: Mapping[str, Any]) -> PodKind | None:
    """A pod's kind; None when the pod does not say."""
    community = pod.get("cloud") == "COMMUNITY"
    gpu, cpu = pod.get("gpu"), pod.get("cpu")
    if isinstance(gpu, dict) and gpu.get("id"):
        return PodKind(str(gpu["id"]), int(gpu.get("count") or 1), cpu=False, community=community)
    if isinstance(cpu, dict) and cpu.get("id") and cpu.get("vcpuCount"):
        return PodKind(str(cpu["id"]), int(cpu["vcpuCount"]), cpu=True, community=community)
    return None


def tag_variable(tag: str) -> str:
    """The environment variable of a tag: MESHD_TAG_SLOT for "meshd-slot"."""
    return TAG_PREFIX + _ENV_UNSAFE.sub("_", tag.removeprefix("meshd-").upper())


def tag(pod: Mapping[str, Any], name: str) -> str:
    """The value of a tag of meshd's on a pod; "" when there is none."""
    env = pod.get("env")
    return str(env.get(tag_variable(name), "")) if isinstance(env, dict) else ""


def is_ours(pod: Mapping[str, Any], cluster: str) -> bool:
    """Whether a pod belongs to this cluster.

    The tag decides. Without a tag the name does, if it has meshd's exact form (cluster, pool, number, six letters or
    digits): people may give their own pods similar names.
    """
    owner = tag(pod, CLUSTER_TAG)
    if owner:
        return owner == cluster
    return bool(re.fullmatch(rf"{re.escape(cluster)}-[a-z0-9-]+-\d+-[a-z0-9]{{6}}", str(pod.get("name") or "")))
