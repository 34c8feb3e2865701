"""Which prices are in use, and what came of fetching them, as people see it. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from meshd.api import schema as s
from meshd.api.faults import answer_to
from meshd.daemon.prices.prices import Fetched
from meshd.model.observed import Fresh, Observation
from meshd.plan.prices import is_stale
from meshd.provider_api import Offer, PriceSource


def prices_view(
    offers: Mapping[str, Observation[Sequence[Offer]]],
    books: Collection[str],
    last: Mapping[str, Fetched],
    damaged: Mapping[str, str],
    *,
    stale_after_s: float,
    now: datetime,
) -> s.PricesView:
    """The prices of the offers as they were read last, by provider, source and day.

    Args:
        offers: of each enabled provider.
        books: the providers whose prices can be fetched.
        last: what came of the last fetch.
        damaged: files of fetched prices that cannot be read.
        stale_after_s: older ones are stale.
        now: the time.
    """
    rows: list[s.PriceRow] = []
    for provider, seen in sorted(offers.items()):
        trouble = "; ".join(_trouble(provider, last.get(provider), damaged.get(provider, "")))
        found = _rows(provider, seen, provider in books, stale_after_s, now)
        rows += [row.model_copy(update={"note": trouble or row.note}) for row in found]
    return s.PricesView(at=now, stale_after_s=stale_after_s, prices=rows)


def _trouble(provider: str, last: Fetched | None, damaged: str) -> Iterator[str]:
    if damaged:
        yield f"{damaged}; `meshctl prices refresh {provider}` writes it again"
    if last is not None and last.error is not None:
        yield f"fetching failed at {last.at:%Y-%m-%d %H:%M} UTC: {last.error}"


def _rows(
    provider: str, seen: Observation[Sequence[Offer]], is_book: bool, stale_after_s: float, now: datetime
) -> Iterator[s.PriceRow]:
    if not isinstance(seen, Fresh):
        yield s.PriceRow(provider=provider, refreshable=is_book, note=f"its offers cannot be read: {seen.reason}")
        return
    groups: dict[tuple[str, str], list[Offer]] = {}
    for offer in seen.value:
        day = f"{offer.price_as_of:%Y-%m-%d}" if offer.price_as_of else ""
        groups.setdefault((offer.price_source.value, day), []).append(offer)
    if not groups:
        yield s.PriceRow(provider=provider, refreshable=is_book, note="it offers nothing with a known price")
    for (source, _), offers in sorted(groups.items()):
        dates = [offer.price_as_of for offer in offers if offer.price_as_of is not None]
        oldest = min(dates, default=None)
        stale = any(is_stale(offer, now, stale_after_s) for offer in offers)
        yield s.PriceRow(
            provider=provider,
            source=source,
            as_of=oldest,
            age_s=round(max((now - oldest).total_seconds(), 0.0), 1) if oldest else None,
            types=len({offer.instance_type for offer in offers}),
            regions=len({offer.region for offer in offers}),
            stale=stale,
            refreshable=is_book,
            note=_cure(provider, is_book) if stale else "",
        )


def _cure(provider: str, is_book: bool) -> str:
    if is_book:
        return f"`meshctl prices refresh {provider}`"
    return f"its API tells no prices: set providers.{provider}.prices, or update meshd"


def refresh_row(provider: str, fetched: Fetched) -> s.PriceRefreshRow:
    """What came of one fetch."""
    if fetched.prices is not None:
        prices = fetched.prices
        return s.PriceRefreshRow(
            provider=provider, ok=True, as_of=prices.as_of, types=prices.names, regions=len(prices.usd_per_hour),
            text="fetched",
        )  # fmt: skip
    assert fetched.error is not None
    _, view = answer_to(fetched.error)
    return s.PriceRefreshRow(
        provider=provider, text=f"{view.error}; the prices from before still hold", cure=view.cure, kind=view.kind
    )


def cannot_row(provider: str, seen: Observation[Sequence[Offer]]) -> s.PriceRefreshRow:
    """A provider that cannot be asked for prices: since it tells them with its offers, or not at all."""
    sources = {offer.price_source for offer in seen.value} if isinstance(seen, Fresh) else set()
    if sources == {PriceSource.API}:
        return s.PriceRefreshRow(provider=provider, ok=True, text="tells its prices with its offers: nothing to fetch")
    return s.PriceRefreshRow(
        provider=provider,
        text="its API tells no prices: the shipped table and the settings hold",
        cure=f"set providers.{provider}.prices, or update meshd",
        kind="no_price_list",
    )
