"""Machine types of the Lambda stand-in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deploy.sandbox.clouds.gpu_names import nvidia_smi_name

REGIONS = {
    "us-east-1": "Virginia, USA",
    "us-west-1": "California, USA",
    "us-south-2": "North Texas, USA",
    "europe-central-1": "Germany",
}


@dataclass(frozen=True, slots=True)
class LambdaType:
    """One instance type.

    Attributes:
        form: the form factor in Lambda's description, e.g. "SXM5", "PCIe"; "" for none.
        regions: where it exists; the ledger decides whether it has free capacity there.
    """

    name: str
    gpus: int
    model: str
    memory_gib: int
    form: str
    cents_per_hour: int
    vcpus: int
    ram_gib: int
    storage_gib: int
    regions: tuple[str, ...]

    @property
    def gpu_name(self) -> str:
        """The GPU's name in nvidia-smi."""
        return nvidia_smi_name(self.model, self.memory_gib, "PCIe" if self.form == "PCIe" else "SXM")

    def body(self) -> dict[str, Any]:
        """The vendor's InstanceType."""
        gpu = f"{self.model} ({self.memory_gib} GB{' ' if self.form else ''}{self.form})"
        return {
            "name": self.name,
            "description": f"{self.gpus}x {gpu}",
            "gpu_description": gpu,
            "price_cents_per_hour": self.cents_per_hour,
            "specs": {
                "vcpus": self.vcpus,
                "memory_gib": self.ram_gib,
                "storage_gib": self.storage_gib,
                "gpus": self.gpus,
            },
        }


_ALL = tuple(REGIONS)
TYPES = (
    LambdaType("gpu_1x_h100_sxm5", 1, "H100", 80, "SXM5", 329, 26, 225, 2816, _ALL),
    LambdaType("gpu_2x_h100_sxm5", 2, "H100", 80, "SXM5", 638, 52, 450, 5632, _ALL),
    LambdaType("gpu_4x_h100_sxm5", 4, "H100", 80, "SXM5", 1236, 104, 900, 11264, _ALL[:2]),
    LambdaType("gpu_8x_h100_sxm5", 8, "H100", 80, "SXM5", 2392, 208, 1800, 22528, _ALL[:2]),
    LambdaType("gpu_1x_h100_pcie", 1, "H100", 80, "PCIe", 249, 26, 200, 1024, _ALL[1:3]),
    LambdaType("gpu_8x_a100_80gb_sxm4", 8, "A100", 80, "SXM4", 1432, 240, 1800, 19456, _ALL[:1]),
    LambdaType("gpu_8x_a100", 8, "A100", 40, "SXM4", 1032, 124, 1800, 5632, _ALL[1:3]),
    LambdaType("gpu_1x_a10", 1, "A10", 24, "PCIe", 75, 30, 200, 1400, _ALL),
    LambdaType("gpu_1x_gh200", 1, "GH200", 96, "", 149, 64, 432, 4096, _ALL[:1]),
)
