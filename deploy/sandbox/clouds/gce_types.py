"""Machine types of the Compute Engine stand-in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deploy.sandbox.clouds.gpu_names import nvidia_smi_name

ZONES = (
    "us-central1-a",
    "us-central1-b",
    "us-east1-b",
    "us-east4-a",
    "us-west1-a",
    "europe-west4-b",
)


@dataclass(frozen=True, slots=True)
class GceType:
    """One machine type.

    Attributes:
        accelerator: of the GPUs that are part of the type; "" for none.
        spot_only: Google rents it as spot only.
        zones: where it exists; the ledger decides whether it has free capacity there.
    """

    name: str
    vcpus: int
    memory_mib: int
    accelerator: str = ""
    gpus: int = 0
    arch: str = "X86_64"
    spot_only: bool = False
    zones: tuple[str, ...] = ZONES

    def body(self, zone: str, number: int) -> dict[str, Any]:
        """The vendor's MachineType."""
        body: dict[str, Any] = {
            "kind": "compute#machineType",
            "id": str(100000 + number),
            "name": self.name,
            "description": f"{self.vcpus} vCPUs, {self.memory_mib // 1024} GB RAM",
            "guestCpus": self.vcpus,
            "memoryMb": self.memory_mib,
            "zone": zone,
            "architecture": self.arch,
            "isSharedCpu": False,
            "maximumPersistentDisks": 128,
            "maximumPersistentDisksSizeGb": "263168",
        }
        if self.accelerator:
            body["accelerators"] = [
                {"guestAcceleratorType": self.accelerator, "guestAcceleratorCount": self.gpus},
            ]
        return body


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator type: Google's name, the driver's name, and the maximum per machine."""

    name: str
    model: str
    memory_gib: int
    most: int

    @property
    def gpu_name(self) -> str:
        """The GPU's name in nvidia-smi."""
        return nvidia_smi_name(self.model, self.memory_gib)

    def body(self, zone: str, number: int) -> dict[str, Any]:
        """The vendor's AcceleratorType."""
        return {
            "kind": "compute#acceleratorType",
            "id": str(200000 + number),
            "name": self.name,
            "description": self.gpu_name,
            "zone": zone,
            "maximumCardsPerInstance": self.most,
        }


ACCELERATORS = {
    one.name: one
    for one in (
        Accelerator("nvidia-l4", "L4", 24, 8),
        Accelerator("nvidia-tesla-t4", "T4", 16, 4),
        Accelerator("nvidia-tesla-v100", "V100", 16, 8),
        Accelerator("nvidia-tesla-a100", "A100", 40, 16),
        Accelerator("nvidia-a100-80gb", "A100", 80, 8),
        Accelerator("nvidia-h100-80gb", "H100", 80, 8),
        Accelerator("nvidia-h100-mega-80gb", "H100", 80, 8),
        Accelerator("nvidia-h200-141gb", "H200", 141, 8),
        Accelerator("nvidia-b200", "B200", 180, 8),
    )
}
_US = ("us-central1-a", "us-east4-a", "us-west1-a")
_GIB = 1024
TYPES = {
    kind.name: kind
    for kind in (
        *(
            GceType(f"a3-highgpu-{n}g", 26 * n, 234 * n * _GIB, "nvidia-h100-80gb", n, spot_only=n < 8, zones=_US)
            for n in (1, 2, 4, 8)
        ),
        GceType("a3-megagpu-8g", 208, 1872 * _GIB, "nvidia-h100-mega-80gb", 8, zones=_US),
        GceType("a3-ultragpu-8g", 224, 2952 * _GIB, "nvidia-h200-141gb", 8, spot_only=True, zones=_US[:2]),
        GceType("a4-highgpu-8g", 224, 3968 * _GIB, "nvidia-b200", 8, spot_only=True, zones=("us-central1-b",)),
        *(GceType(f"a2-highgpu-{n}g", 12 * n, 85 * n * _GIB, "nvidia-tesla-a100", n) for n in (1, 2, 4, 8)),
        *(GceType(f"a2-ultragpu-{n}g", 12 * n, 170 * n * _GIB, "nvidia-a100-80gb", n) for n in (1, 2, 4, 8)),
        *(GceType(f"g2-standard-{v}", v, 4 * v * _GIB, "nvidia-l4", n) for v, n in ((4, 1), (8, 1), (24, 2), (48, 4))),
        *(GceType(f"n1-standard-{v}", v, 3840 * v) for v in (1, 2, 4, 8, 16)),
        *(GceType(f"e2-standard-{v}", v, 4 * v * _GIB) for v in (2, 4, 8)),
        GceType("t2a-standard-4", 4, 16 * _GIB, arch="ARM64", zones=("us-central1-a",)),
    )
}
