"""GPU types, CPU flavours and data centres of the RunPod stand-in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: id -> (name, country)
DATA_CENTERS = {
    "US-KS-2": ("US Kansas 2", "US"),
    "US-TX-3": ("US Texas 3", "US"),
    "CA-MTL-1": ("CA Montreal 1", "CA"),
    "EU-RO-1": ("EU Romania 1", "RO"),
}
_ALL = tuple(DATA_CENTERS)


@dataclass(frozen=True, slots=True)
class GpuType:
    """One GPU type. Its id is the GPU's name in nvidia-smi.

    Attributes:
        usd_per_hour: of one GPU, by tier.
        max_count: of GPUs in one pod, by tier; 0: not in that tier.
        data_centers: where it exists; the ledger decides whether it has free capacity there.
    """

    id: str
    name: str
    memory_gb: int
    usd_per_hour: dict[str, float]
    max_count: dict[str, int]
    data_centers: tuple[str, ...]
    manufacturer: str = "NVIDIA"

    def body(self) -> dict[str, Any]:
        """The vendor's GpuType, without availability."""
        return {
            "id": self.id,
            "name": self.name,
            "pool": None,
            "manufacturer": self.manufacturer,
            "memory": self.memory_gb,
            "secure": self.max_count["secure"] > 0,
            "community": self.max_count["community"] > 0,
            "price": self.usd_per_hour,
            "maxCount": self.max_count,
        }


@dataclass(frozen=True, slots=True)
class CpuFlavour:
    """One CPU flavour."""

    id: str
    name: str
    group: str
    max_vcpus: int
    ram_gb_per_vcpu: float
    usd_per_vcpu_hour: float
    data_centers: tuple[str, ...]

    def body(self) -> dict[str, Any]:
        """The vendor's CpuType, without availability."""
        return {
            "id": self.id,
            "name": self.name,
            "group": self.group,
            "vcpu": {"min": 2, "max": self.max_vcpus},
            "ramGbPerVcpu": self.ram_gb_per_vcpu,
            "price": {"securePerVcpu": self.usd_per_vcpu_hour, "serverlessPerVcpu": self.usd_per_vcpu_hour},
        }


def _both(secure: float, community: float) -> dict[str, float]:
    return {"secure": secure, "community": community}


def _most(secure: int, community: int) -> dict[str, int]:
    return {"secure": secure, "community": community}


GPUS = (
    GpuType("NVIDIA H100 80GB HBM3", "H100 SXM", 80, _both(2.99, 2.69), _most(8, 8), _ALL[:3]),
    GpuType("NVIDIA H100 PCIe", "H100 PCIe", 80, _both(2.39, 1.99), _most(8, 4), _ALL[:2]),
    GpuType("NVIDIA A100-SXM4-80GB", "A100 SXM", 80, _both(1.89, 1.59), _most(8, 8), _ALL),
    GpuType("NVIDIA GeForce RTX 4090", "RTX 4090", 24, _both(0.69, 0.34), _most(8, 6), _ALL[1:]),
    GpuType("NVIDIA A40", "A40", 48, _both(0.4, 0), _most(10, 0), _ALL[:1]),
    GpuType("AMD Instinct MI300X OAM", "MI300X", 192, _both(2.49, 0), _most(8, 0), _ALL[3:], "AMD"),
)
CPUS = (
    CpuFlavour("cpu3c", "Compute-Optimized", "Gen 3", 32, 2.0, 0.03, _ALL),
    CpuFlavour("cpu5c", "Compute-Optimized", "Gen 5", 16, 2.5, 0.04, _ALL[:2]),
)
