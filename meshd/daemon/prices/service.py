"""What people ask about prices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from meshd.api import schema as s
from meshd.api.faults import Unknown
from meshd.codes import RefusalCode
from meshd.daemon.prices.prices import Prices
from meshd.daemon.prices.views import cannot_row, prices_view, refresh_row
from meshd.model.desired import Desired
from meshd.model.observed import Observation
from meshd.provider_api import Offer
from meshd.runtime.clock import Clock


class PriceService:
    """Answers from the offers as they were read last.

    Args:
        prices: fetches them.
        offers: the newest word of each enabled provider.
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
