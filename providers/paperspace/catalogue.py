"""The dated table of Paperspace's machine types that ships with meshd: its API lists neither shapes nor prices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources


@dataclass(frozen=True, slots=True)
class MachineType:
    """What one of a type is.

    Attributes:
        label: the vendor's name, spelled as its API does.
        gpu: the normalised model; "" without GPUs.
        regions: codes of the regions where the vendor has it at all.
    """

    label: str
    gpu: str
    gpu_memory_gib: int
    gpus: int
    vcpus: int
    memory_gib: int
    usd_per_hour: float
    regions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All types that meshd knows.

    Attributes:
        as_of: the day on which the list prices were collected.
        types: by the label in lower case, since the vendor's pages spell it both ways.
    """

    as_of: datetime
    types: Mapping[str, MachineType]


def shipped() -> Catalogue:
    """Read the table from the package."""
    raw = json.loads(resources.files("providers.paperspace").joinpath("catalogue.json").read_text("utf-8"))
    types = {
        label.lower(): MachineType(label=label, **{**row, "regions": tuple(row["regions"])})
        for label, row in raw["types"].items()
    }
    return Catalogue(datetime.fromisoformat(raw["as_of"]).replace(tzinfo=UTC), types)
