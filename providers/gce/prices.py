"""The dated table of Compute Engine's list prices that ships with meshd, since the Compute API tells none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources

Pair = Sequence[float | None]
"""On demand, spot; None where it is not rented that way or no price is known."""


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices of whole machines, and of single attached GPUs, without disks.

    Attributes:
        as_of: the day of which the prices are at the earliest.
        machines: USD per hour by region, then by machine type.
        accelerators: USD per hour of one attached GPU by region, then by accelerator type.
    """

    as_of: datetime
    machines: Mapping[str, Mapping[str, Pair]]
    accelerators: Mapping[str, Mapping[str, Pair]]

    def find(self, region: str, machine_type: str, *, spot: bool) -> float | None:
        """USD per hour of a machine type; None when the table does not have it."""
        return _of(self.machines, region, machine_type, spot)

    def find_attached(self, region: str, accelerator: str, *, spot: bool) -> float | None:
        """USD per hour of one attached GPU; None when the table does not have it."""
        return _of(self.accelerators, region, accelerator, spot)


def _of(table: Mapping[str, Mapping[str, Pair]], region: str, name: str, spot: bool) -> float | None:
    pair = table.get(region, {}).get(name)
    return None if pair is None else pair[int(spot)]


def shipped() -> PriceTable:
    """Read the table from the package."""
    raw = json.loads(resources.files("providers.gce").joinpath("prices.json").read_text("utf-8"))
    return PriceTable(datetime.fromisoformat(raw["as_of"]).replace(tzinfo=UTC), raw["machines"], raw["accelerators"])
