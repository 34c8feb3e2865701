"""Which prices meshd uses: `meshctl prices`."""

from __future__ import annotations

from pydantic import AwareDatetime

from meshd.api.schema.base import Document, Part, Request, Words


class PriceRow(Part):
    """Prices in use: those of one provider with the same source and day.

    Attributes:
        source: `api` (it comes with the offers), `refreshed` (fetched), `shipped` (with meshd) or `settings`; "" when
            the provider's offers cannot be read or have no price.
        as_of: None for prices of the settings, which do not age.
        types: how many instance types have such a price.
        stale: too old to rely on for a budget.
        refreshable: `prices refresh` can fetch them.
        note: what is wrong, and what to do.
    """

    provider: str
    source: str = ""
    as_of: AwareDatetime | None = None
    age_s: float | None = None
    types: int = 0
    regions: int = 0
    stale: bool = False
    refreshable: bool = False
    note: str = ""


class PricesView(Document):
    """Which prices meshd uses."""

    at: AwareDatetime
    stale_after_s: float
    prices: list[PriceRow] = []


class PricesRefresh(Request):
    """Fetch prices, for at most the setting `prices.refresh_timeout_s`. No providers: of all that have a price list."""

    providers: Words = ()


class PriceRefreshRow(Part):
    """What came of fetching one provider's prices. If that failed, the former prices stay in use.

    Attributes:
        ok: they were fetched, or they come with the provider's offers anyway.
        kind: why, for programs, as in ErrorView; `no_price_list` where the cloud cannot be asked.
    """

    provider: str
    ok: bool = False
    text: str = ""
    cure: str = ""
    kind: str = ""
    as_of: AwareDatetime | None = None
    types: int = 0
    regions: int = 0


class PricesRefreshed(Document):
    """What came of a PricesRefresh, and what is in use now."""

    at: AwareDatetime
    results: list[PriceRefreshRow] = []
    prices: list[PriceRow] = []
