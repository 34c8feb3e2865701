"""Machine types of the Paperspace stand-in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deploy.sandbox.clouds.gpu_names import nvidia_smi_name

REGIONS = {"ny2": "East Coast (NY2)", "ca1": "West Coast (CA1)", "ams1": "Europe (AMS1)"}
DISKS_GB = (50, 100, 250, 500, 1000, 2000)


@dataclass(frozen=True, slots=True)
class PaperspaceType:
    """One machine type.

    Attributes:
        regions: codes of the regions where it exists; the ledger decides whether it has free capacity there.
    """

    label: str
    gpus: int
    model: str
    memory_gib: int
    cpus: int
    ram_gib: int
    usd_per_hour: float
    regions: tuple[str, ...]

    @property
    def gpu_name(self) -> str:
        """The GPU's name in nvidia-smi."""
        return nvidia_smi_name(self.model, self.memory_gib) if self.gpus else ""

    def accelerators(self) -> list[dict[str, Any]] | None:
        """The vendor's field."""
        if not self.gpus:
            return None
        return [{"name": f"{self.model} {self.memory_gib}G", "memory": self.memory_gib * 1024**3, "count": self.gpus}]


_ALL = tuple(REGIONS)
_NY2 = _ALL[:1]
TYPES = (
    PaperspaceType("H100", 1, "H100", 80, 16, 250, 5.95, _NY2),
    PaperspaceType("H100x8", 8, "H100", 80, 128, 1638, 47.60, _NY2),
    PaperspaceType("A100-80G", 1, "A100", 80, 12, 90, 3.18, _NY2),
    PaperspaceType("A100-80Gx8", 8, "A100", 80, 96, 720, 25.44, _NY2),
    PaperspaceType("A6000", 1, "RTX A6000", 48, 8, 45, 1.89, ("ny2", "ams1")),
    PaperspaceType("A4000", 1, "RTX A4000", 16, 8, 45, 0.76, _ALL),
    PaperspaceType("A4000x2", 2, "RTX A4000", 16, 16, 90, 1.52, _ALL),
    PaperspaceType("V100", 1, "V100", 16, 8, 30, 2.30, ("ny2", "ca1")),
    PaperspaceType("C5", 0, "", 0, 4, 8, 0.08, _ALL),
    PaperspaceType("C7", 0, "", 0, 12, 30, 0.30, _ALL),
)


def _template(
    template_id: str, name: str, system: str, labels: list[str], agent: str = "LinuxHeadless"
) -> dict[str, Any]:
    return {
        "id": template_id,
        "name": name,
        "agentType": agent,
        "operatingSystemLabel": system,
        "defaultSizeGb": 50,
        "dtCreated": "2025-01-01T00:00:00.000Z",
        "availableMachineTypes": [{"machineTypeLabel": label, "isAvailable": True} for label in labels],
    }


_GPU = [kind.label for kind in TYPES if kind.gpus]
TEMPLATES = (
    _template("twin0001", "Windows 10", "Windows 10 (Server 2022)", _GPU, "WindowsDesktop"),
    _template("tubu0022", "Ubuntu 22.04", "Ubuntu 22.04 Server", [kind.label for kind in TYPES]),
    _template("tmlb0001", "ML-in-a-Box Ubuntu 22.04", "Ubuntu 22.04 MLiaB", [x for x in _GPU if x != "H100x8"]),
    _template("tmlb0008", "ML-in-a-Box Ubuntu 22.04 NVLink", "Ubuntu 22.04 MLiaB", ["H100x8"]),
)
