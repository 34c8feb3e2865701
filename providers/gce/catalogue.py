"""What Google rents in the regions of the settings; remembered for a while, since it changes by the week."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from meshd.provider_api import Offer
from providers.gce.client import Gce
from providers.gce.prices import PriceTable
from providers.gce.settings import GceSettings
from providers.gce.shapes import MachineType, by_zone, name_filter, to_offers, usable_types, usd_per_hour


class Catalogue:
    """Types and prices."""

    def __init__(self, gce: Gce, settings: GceSettings, prices: PriceTable, now: Callable[[], datetime]) -> None:
        self._gce = gce
        self._settings = settings
        self._prices = prices
        self._now = now
        self._known: tuple[datetime, list[MachineType]] | None = None

    def usd_per_hour(self, region: str, instance_type: str, *, spot: bool) -> float | None:
        """The price of a machine; None when it is not known."""
        return usd_per_hour(instance_type, region, self._settings, self._prices, spot=spot)

    async def offers(self, *, spot: bool) -> list[Offer]:
        """On-demand offers of every type with a known price, and spot offers when `spot`."""
        return to_offers(await self._types(), self._settings, self._prices, spot=spot)

    async def _types(self) -> list[MachineType]:
        if self._known is not None:
            at, types = self._known
            if self._now() - at < timedelta(seconds=self._settings.catalogue_ttl_s):
                return types
        rows = by_zone(await self._gce.machine_types(name_filter(self._settings)), "machineTypes")
        cards = await self._gce.accelerator_types() if self._settings.attached_gpus else {}
        types = usable_types(rows, by_zone(cards, "acceleratorTypes"), self._settings)
        self._known = (self._now(), types)
        return types
