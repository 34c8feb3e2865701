"""Prices as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from meshd.api.schema import PriceRefreshRow, PriceRow
from meshd.cli.render import age, text
from meshd.cli.sheet import Sheet

_HEADERS = ("PROVIDER", "SOURCE", "DATE", "AGE", "TYPES", "REGIONS", "NOTE")


def prices(rows: Sequence[PriceRow]) -> list[RenderableType]:
    """Which prices are in use."""
    return [
        Sheet(
            _HEADERS,
            [
                (
                    row.provider,
                    row.source or "-",
                    f"{row.as_of:%Y-%m-%d}" if row.as_of else "-",
                    text(f"{age(row.age_s)} stale", "yellow") if row.stale else age(row.age_s),
                    f"{row.types}",
                    f"{row.regions}",
                    text(row.note, "yellow"),
                )
                for row in rows
            ],
            spare=("TYPES", "REGIONS", "DATE"),
        )
    ]


def refreshed(row: PriceRefreshRow) -> Iterator[str]:
    """What came of one fetch."""
    if row.as_of is not None:
        yield f"{row.provider}: {row.types} types in {row.regions} regions"
        return
    yield f"{row.provider}: {row.text}"
    if row.cure:
        yield f"  do: {row.cure}"
