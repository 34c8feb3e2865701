"""Prices from tables: one ships with an adapter, one is fetched. The newer one wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib import resources

from meshd.price_list import PriceList, parse
from meshd.provider_api import PriceSource


@dataclass(frozen=True, slots=True)
class Price:
    """A price and its source.

    Attributes:
        as_of: the date of its table; None for a price from the user's settings.
    """

    usd_per_hour: float
    as_of: datetime | None
    source: PriceSource


def by_settings(usd_per_hour: float) -> Price:
    """A price from the user's settings, which has no date."""
    return Price(usd_per_hour, None, PriceSource.SETTINGS)


def shipped(package: str) -> PriceList:
    """Read `prices.json` from an adapter's package."""
    return parse(resources.files(package).joinpath("prices.json").read_bytes())


@dataclass(frozen=True, slots=True)
class PriceTables:
    """Both tables of an adapter.

    Attributes:
        shipped: the table in the package.
        fetched: returns the newest fetched table; called for each price, so that a new table counts at once.
    """

    shipped: PriceList
    fetched: Callable[[], PriceList | None]

    def find(self, region: str, name: str, *, spot: bool = False) -> Price | None:
        """The newest price of a type in a region; None when neither table has it."""
        fetched = self.fetched()
        tables = [(self.shipped, PriceSource.SHIPPED)]
        if fetched is not None:
            newer = fetched.as_of >= self.shipped.as_of
            tables.insert(0 if newer else 1, (fetched, PriceSource.REFRESHED))
        for table, source in tables:
            usd = table.usd(region, name, spot=spot)
            if usd is not None:
                return Price(usd, table.as_of, source)
        return None
