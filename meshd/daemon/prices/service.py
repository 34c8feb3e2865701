"""What people ask about prices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshd.api import schema as s
from meshd.api.faults import Unknown
from meshd.api.schema import ProblemView
from meshd.codes import RefusalCode
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.sources import Sources
from meshd.daemon.prices.files import PriceFiles
from meshd.daemon.prices.prices import Prices, stale
from meshd.daemon.prices.views import cannot_row, prices_view, refresh_row
from meshd.daemon.reporting import Reporter
from meshd.model.desired import Desired
from meshd.model.observed import Observation
from meshd.provider_api import Offer, PriceBook, Provider
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal


class PriceService(Reporter):
    """Answers from the offers as they were read last.

    Args:
        prices: fetches them.
        offers: what each enabled provider said last.
        desired: for the age from which prices are stale.
    """

    def __init__(
        self,
        prices: Prices,
        offers: Callable[[], Mapping[str, Observation[Sequence[Offer]]]],
        desired: Callable[[], Desired],
        clock: Clock,
    ) -> None:
        self._prices = prices
        self._offers = offers
        self._desired = desired
        self._clock = clock

    def problems(self) -> Iterable[ProblemView]:
        """Pools whose limit in USD was held against old prices."""
        return stale(self._desired(), self._prices.machines())

    async def prices(self) -> s.PricesView:
        """Which prices are in use."""
        return prices_view(
            self._offers(), self._prices.books, self._prices.last(), self._prices.files.damaged(),
            stale_after_s=self._desired().policy.price_stale_after_s, now=self._clock.now(),
        )  # fmt: skip

    async def refresh(self, request: s.PricesRefresh) -> s.PricesRefreshed:
        """Fetch, all providers at once.

        Raises:
            Unknown: a provider that is not enabled; nothing is fetched then.
        """
        offers, books = self._offers(), self._prices.books
        unknown = [name for name in request.providers if name not in offers]
        if unknown:
            known = ", ".join(sorted(offers)) or "none"
            raise Unknown(
                f"{', '.join(unknown)} is not enabled",
                f"enabled providers are: {known}",
                code=RefusalCode.NO_SUCH_PROVIDER,
            )
        asked = list(dict.fromkeys(request.providers)) or sorted(books)
        rows = await asyncio.gather(*(self._row(name, offers[name]) for name in asked))
        view = await self.prices()
        return s.PricesRefreshed(at=view.at, results=rows, prices=view.prices)

    async def _row(self, provider: str, seen: Observation[Sequence[Offer]]) -> s.PriceRefreshRow:
        if provider not in self._prices.books:
            return cannot_row(provider, seen)
        return refresh_row(provider, await self._prices.refresh(provider))


@dataclass(frozen=True, slots=True)
class PriceParts:
    """The parts that look after prices: one fetches them, the other answers."""

    controller: Prices
    service: PriceService


def build(
    providers: Mapping[str, Provider],
    files: PriceFiles,
    sources: Sources,
    live: LiveSettings,
    journal: Journal,
    desired: Callable[[], Desired],
    clock: Clock,
) -> PriceParts:
    """Build the parts. For the arguments see Prices and PriceService."""
    books = {name: provider for name, provider in providers.items() if isinstance(provider, PriceBook)}
    prices = Prices(books, files, clock, live=live, read_offers=sources.read_offers, journal=journal)
    return PriceParts(prices, PriceService(prices, sources.seen_offers, desired, clock))
