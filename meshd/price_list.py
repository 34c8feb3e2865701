"""What a cloud charges, as it was read on one day: the form of the tables that ship with adapters and of those fetched.

PURE: no I/O, no clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

Usd = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Pair = tuple[Usd | None, Usd | None]
"""On demand, spot; None where it is not rented that way or no price is known."""


class PriceList(BaseModel):
    """Prices of one cloud, all of one time, without disks and traffic.

    Attributes:
        as_of: when they were read from the vendor, or the day on which a shipped table was collected.
        usd_per_hour: by region, then by name: of whole machines by instance type, or of what is priced by itself, such
            as one attached GPU, by the vendor's name of it.
        note: where they come from, for people who open the file.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    as_of: AwareDatetime
    usd_per_hour: Mapping[str, Mapping[str, Pair]]
    currency: Literal["USD"] = "USD"
    note: str = ""

    @field_validator("as_of", mode="before")
    @classmethod
    def _from_midnight(cls, value: Any) -> Any:
        """A day alone means its beginning, UTC."""
        if isinstance(value, str) and len(value) == len("2026-01-31"):
            day = date.fromisoformat(value)
            return datetime(day.year, day.month, day.day, tzinfo=UTC)
        return value

    def usd(self, region: str, name: str, *, spot: bool = False) -> float | None:
        """USD per hour; None when the list does not have it."""
        pair = self.usd_per_hour.get(region, {}).get(name)
        return None if pair is None else pair[int(spot)]

    @property
    def names(self) -> int:
        """How many different types it prices, in any region."""
        return len({name for table in self.usd_per_hour.values() for name in table})


def parse(text: str | bytes) -> PriceList:
    """Read a file's content.

    Raises:
        ValueError: it is none; one line, with the place of the first fault.
    """
    try:
        return PriceList.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where}: {first['msg']}" if where else str(first["msg"])) from None


def dump(prices: PriceList) -> str:
    """The file's content: sorted, one type a line, so that two of them can be compared with diff."""
    lines = [
        "{",
        f' "as_of": "{prices.as_of.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",',
        f' "note": {json.dumps(prices.note)},',
        f' "currency": "{prices.currency}",',
        ' "usd_per_hour": {',
        ",\n".join(_region(region, table) for region, table in sorted(prices.usd_per_hour.items())),
        " }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _region(region: str, table: Mapping[str, Pair]) -> str:
    rows = (f"   {json.dumps(name)}: {json.dumps(list(pair))}" for name, pair in sorted(table.items()))
    return f"  {json.dumps(region)}: {{\n" + ",\n".join(rows) + "\n  }"


def collected(rates: Iterable[tuple[str, str, bool, float]], as_of: datetime, note: str) -> PriceList:
    """A list out of rows (region, name, spot, USD per hour); where a row comes twice, the dearer one holds.

    A budget that was checked against the dearer one is kept whichever of them is billed.
    """
    found: dict[str, dict[str, list[float | None]]] = {}
    for region, name, spot, usd in rates:
        pair = found.setdefault(region, {}).setdefault(name, [None, None])
        known = pair[int(spot)]
        pair[int(spot)] = round(usd, 6) if known is None else max(known, round(usd, 6))
    table = {region: {name: (a, b) for name, (a, b) in names.items()} for region, names in found.items()}
    return PriceList(as_of=as_of, usd_per_hour=table, note=note)
