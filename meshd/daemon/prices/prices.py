"""Fetches prices: when somebody asks, and by itself when they have become old. Reports old and unreadable ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from meshd.api.schema import ProblemView
from meshd.codes import EventKind, ProblemCode
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.prices.files import PriceFiles
from meshd.daemon.reporting import problem
from meshd.errors import AuthFailed, InvalidRequest, MeshdError
from meshd.model.desired import Desired
from meshd.model.machine import Machine
from meshd.plan.prices import refresh_words, rented_by_stale
from meshd.price_list import PriceList
from meshd.provider_api import PriceBook
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 600.0
AGAIN_S = 3600.0
"""By itself, after a fetch that failed."""
AGAIN_DENIED_S = 86400.0
"""The same, when it is the permission that is missing: that is mended by a person, or not at all."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came of a fetch.

    Attributes:
        prices: None when it failed; the prices from before then still hold.
        error: why it failed.
    """

    at: datetime
    prices: PriceList | None = None
    error: MeshdError | None = None


class Prices(Controller):
    """See the module.

    Args:
        books: the providers that can be asked; guarded: each call has its own deadline.
        files: where the prices are kept.
        settings: those in force.
        read_offers: reads a provider's offers again, so that they have the new prices.
        journal: what was fetched, or not, is an event.
    """

    name = "prices"

    def __init__(
        self,
        books: Mapping[str, PriceBook],
        files: PriceFiles,
        clock: Clock,
        *,
        live: LiveSettings,
        read_offers: Callable[[str], Awaitable[object]],
        journal: Journal,
    ) -> None:
        super().__init__(clock)
        self.books = books
        self.files = files
        self._live = live
        self._read_offers = read_offers
        self._journal = journal
        self._last: dict[str, Fetched] = {}
        self._running: dict[str, asyncio.Task[Fetched]] = {}

    def problems(self) -> Iterable[ProblemView]:
        """Files of fetched prices that cannot be read, and limits in USD that old prices had to keep."""
        yield from unreadable_files(self.files.damaged())

    def machines(self) -> list[Machine]:
        """Those that were rented by these prices, and others."""
        return self._journal.machines()

    def last(self) -> Mapping[str, Fetched]:
        """What came of the last fetch of this life, by provider."""
        return self._last

    async def refresh(self, provider: str) -> Fetched:
        """Fetch a provider's prices, and read its offers with them. Goes on when its caller hangs up.

        A second one while the first is under way waits for the first.
        """
        task = self._running.get(provider)
        if task is None:
            task = asyncio.create_task(self._refresh(provider), name=f"prices of {provider}")
            self._running[provider] = task
            task.add_done_callback(lambda _: self._running.pop(provider, None))
        return await asyncio.shield(task)

    async def reconcile(self) -> float:
        """Fetch what has become old."""
        for provider in self.books:
            if self.due(provider):
                await self.refresh(provider)
        return LOOK_EVERY_S

    def due(self, provider: str) -> bool:
        """Whether the prices are old enough to be fetched by themselves, and the last failure is long enough ago."""
        now, after = self._clock.now(), timedelta(days=self._live.settings.prices.refresh_after_d)
        if not after:
            return False
        last = self._last.get(provider)
        if last is not None and last.error is not None:
            pause_s = AGAIN_DENIED_S if isinstance(last.error, AuthFailed) else AGAIN_S
            if now - last.at < timedelta(seconds=pause_s):
                return False
        known = self.files.find(provider)
        return known is None or now - known.as_of >= after

    def _event(self, text: str) -> None:
        self._journal.event(self._clock.now(), EventKind.PRICES, text)

    async def aclose(self) -> None:
        """Give up what is under way; the prices from before hold."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _refresh(self, provider: str) -> Fetched:
        now = self._clock.now()
        try:
            prices = await self.books[provider].fetch_prices()
            if not prices.names:
                text = "no price for any type and region: look at the settings regions and instance_types"
                raise InvalidRequest(text, provider=provider, operation="prices")
            self.files.put(provider, prices)
        except MeshdError as error:
            self._failed(provider, error, now)
        else:
            self._last[provider] = Fetched(now, prices)
            found = f"{prices.names} types in {len(prices.usd_per_hour)} regions"
            self._event(f"prices of {provider} were fetched: {found}")
            await self._read_offers(provider)
        return self._last[provider]

    def _failed(self, provider: str, error: MeshdError, now: datetime) -> None:
        """A permission may be missing on purpose: report it to who asks, without a warning in the log."""
        level = log.info if isinstance(error, AuthFailed) else log.warning
        level("prices_not_fetched", provider=provider, reason=str(error))
        self._last[provider] = Fetched(now, error=error)


def stale(desired: Desired, machines: Iterable[Machine]) -> Iterable[ProblemView]:
    """Pools whose limit in USD was held against old prices."""
    for pool, found in rented_by_stale(machines, desired).items():
        for (provider, date), names in sorted(found.items()):
            some = "1 machine was" if len(names) == 1 else f"{len(names)} machines were"
            text = f"{some} rented within the limit by prices of {provider} of {date}: the bill may be higher"
            yield problem(ProblemCode.PRICES_STALE, "warning", text, refresh_words(provider), pool=pool)


def unreadable_files(damaged: Mapping[str, str]) -> Iterable[ProblemView]:
    """Files of fetched prices that cannot be read, each with why: meshd uses older prices."""
    for provider, why in sorted(damaged.items()):
        text = f"{why}; meshd uses older prices of {provider}"
        cure = f"`meshctl prices refresh {provider}` writes the file again"
        yield problem(ProblemCode.PRICE_FILE_UNREADABLE, "warning", text, cure)
