"""Which prices meshd reckons with: `meshctl prices`."""

from __future__ import annotations

from pydantic import AwareDatetime

from meshd.api.schema.base import Document, Part, Request, Words


class PriceRow(Part):
    """Prices in use: those of one provider that have one source and one day.

    Attributes:
        source: `api` (told with the offers), `refreshed` (fetched), `shipped` (with meshd) or `settings`; "" when the
            provider's offers cannot be read or have no price.
        as_of: None for prices of the settings, which do not age.
        types: how many instance types have such a price.
        stale: too old to be trusted with a budget.
        refreshable: `prices refresh` can fetch them.
        note: what is wrong, and what helps.
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
    """Which prices meshd reckons with."""

    at: AwareDatetime
    stale_after_s: float
    prices: list[PriceRow] = []


class PricesRefresh(Request):
    """Fetch prices, for at most `prices.refresh_timeout_s` of the settings. No providers: of all that can be asked."""

    providers: Words = ()


class PriceRefreshRow(Part):
    """What came of fetching one provider's prices. Where it failed, those from before still hold.

    Attributes:
        ok: they were fetched, or the provider tells them with its offers anyway.
        kind: a word for programs, as in ErrorView; `no_price_list` where the cloud cannot be asked.
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
