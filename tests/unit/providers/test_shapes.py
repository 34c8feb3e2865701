"""The shapes of instance types that ship with adapters, beside what the vendors' APIs say of them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import moto.ec2
import pytest

from providers._brochure import shapes
from providers.aws.offers import to_instance_type
from providers.gce.offers import to_gpu

RESOURCES = Path(moto.ec2.__file__).parent / "resources"

PER_CPU_GIB = {"n1-standard": 3.75, "n1-highmem": 6.5, "e2-standard": 4, "c2-standard": 4, "g2-standard": 4}
"""Families whose names end with their vCPUs."""
L4 = {"4": 1, "8": 1, "12": 1, "16": 1, "24": 2, "32": 1, "48": 4, "96": 8}
"""By the vCPUs of G2, its GPUs."""
A2_A3_A4 = {
    "a2-highgpu": ("nvidia-tesla-a100", 12, 85),
    "a2-ultragpu": ("nvidia-a100-80gb", 12, 170),
    "a2-megagpu": ("nvidia-tesla-a100", 6, 85),
    "a3-highgpu": ("nvidia-h100-80gb", 26, 234),
    "a3-megagpu": ("nvidia-h100-mega-80gb", 26, 234),
    "a3-ultragpu": ("nvidia-h200-141gb", 28, 369),
    "a4-highgpu": ("nvidia-b200", 28, 496),
}
"""Families whose names end with their GPUs: those, and the vCPUs and GiB of memory for each."""


def ec2_types() -> dict[str, Any]:
    """What DescribeInstanceTypes answered when moto copied it."""
    (file,) = RESOURCES.glob("instance_types.json*")
    data = file.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
    return found


def test_ec2_types_are_as_ec2_describes_them() -> None:
    described = ec2_types()
    for shape in shapes("providers.aws", ["*"]):
        kind = to_instance_type(described[shape.name])
        assert kind is not None, shape.name
        ours = (shape.gpu, shape.gpus, shape.gpu_memory_gib, shape.vcpus, int(shape.memory_gib * 1024), shape.arch)
        theirs = (kind.gpu, kind.gpus, kind.gpu_memory_gib, kind.vcpus, kind.memory_mib, kind.arch)
        assert ours == theirs, shape.name


def test_types_of_compute_engine_are_as_their_families_are() -> None:
    for shape in shapes("providers.gce", ["*"]):
        family, _, size = shape.name.rpartition("-")
        ours = (shape.gpu, shape.gpus, shape.gpu_memory_gib, shape.vcpus, shape.memory_gib)
        if family in A2_A3_A4:
            accelerator, vcpus, memory_gib = A2_A3_A4[family]
            gpus = int(size.removesuffix("g"))
            assert ours == (to_gpu(accelerator)[0], gpus, to_gpu(accelerator)[1], gpus * vcpus, gpus * memory_gib)
            continue
        assert re.fullmatch(r"\d+", size), shape.name
        gpus = L4[size] if family == "g2-standard" else 0
        gpu, gpu_memory_gib = to_gpu("nvidia-l4") if gpus else ("", 0)
        assert ours == (gpu, gpus, gpu_memory_gib, int(size), int(size) * PER_CPU_GIB[family]), shape.name


@pytest.mark.parametrize(
    ("name", "vcpus", "memory_gib"),
    [
        ("a2-megagpu-16g", 96, 1360), ("a3-highgpu-8g", 208, 1872), ("a3-ultragpu-8g", 224, 2952),
        ("a4-highgpu-8g", 224, 3968), ("c2-standard-30", 30, 120), ("n1-highmem-96", 96, 624),
        ("n1-standard-1", 1, 3.75),
    ],
)  # fmt: skip
def test_some_of_them_one_by_one(name: str, vcpus: int, memory_gib: float) -> None:
    """As machineTypes has them."""
    (shape,) = shapes("providers.gce", [name])
    assert (shape.vcpus, shape.memory_gib) == (vcpus, memory_gib)
