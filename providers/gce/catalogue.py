"""Google's machine types and prices in the regions of the settings. Cached, since they seldom change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from meshd.provider_api import Offer
from providers._prices import Price, PriceTables
from providers._reads import ReadCache
from providers.gce.client import Gce
from providers.gce.offers import MachineType, by_zone, name_filter, price_of, to_offers, usable_types
from providers.gce.settings import GceSettings


class Catalogue:
    """Machine types and prices."""

    def __init__(self, gce: Gce, settings: GceSettings, prices: PriceTables, now: Callable[[], datetime]) -> None:
        self._gce = gce
        self._settings = settings
        self._prices = prices
        self._types: ReadCache[str, list[MachineType]] = ReadCache(now, settings.catalogue_ttl_s)

    def price(self, region: str, instance_type: str, *, spot: bool) -> Price | None:
        """The price of a machine; None when it is unknown."""
        return price_of(instance_type, region, self._settings, self._prices, spot=spot)

    async def offers(self) -> list[Offer]:
        """On-demand offers of every type with a known price, and spot offers where the settings want them."""
        return to_offers(await self.types(), self._settings, self._prices)

    async def types(self) -> list[MachineType]:
        """The wanted machine types in the wanted zones."""
        return await self._types.get("", self._read)

    async def _read(self) -> list[MachineType]:
        rows = by_zone(await self._gce.machine_types(name_filter(self._settings)), "machineTypes")
        cards = await self._gce.accelerator_types() if self._settings.attached_gpus else {}
        return usable_types(rows, by_zone(cards, "acceleratorTypes"), self._settings)
