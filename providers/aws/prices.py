"""The dated table of EC2 list prices that ships with meshd, since EC2's own API tells no on-demand price."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources


@dataclass(frozen=True, slots=True)
class PriceTable:
    """On-demand prices of Linux machines.

    Attributes:
        as_of: the day on which the prices were collected.
        usd_per_hour: by region, then by instance type.
    """

    as_of: datetime
    usd_per_hour: Mapping[str, Mapping[str, float]]

    def find(self, region: str, instance_type: str) -> float | None:
        """USD per hour; None when the table does not have it."""
        return self.usd_per_hour.get(region, {}).get(instance_type)


def shipped() -> PriceTable:
    """Read the table from the package."""
    raw = json.loads(resources.files("providers.aws").joinpath("prices.json").read_text("utf-8"))
    return PriceTable(datetime.fromisoformat(raw["as_of"]).replace(tzinfo=UTC), raw["usd_per_hour"])
