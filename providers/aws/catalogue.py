"""EC2's instance types, zones, prices and images. Cached, since they seldom change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from meshd.errors import InvalidRequest
from meshd.provider_api import Offer, PriceSource
from providers._prices import Price, PriceTables, by_settings
from providers._reads import ReadCache, all_of
from providers.aws.client import Ec2
from providers.aws.errors import AWS
from providers.aws.mapping import BootImage, newest_image
from providers.aws.offers import InstanceType, spot_prices, to_instance_type, to_offer
from providers.aws.settings import AwsSettings


@dataclass(frozen=True, slots=True)
class _Region:
    types: dict[str, InstanceType]
    zones: tuple[tuple[str, str], ...]


class Catalogue:
    """Types, zones, prices and images in the regions of the settings."""

    def __init__(self, ec2: Ec2, settings: AwsSettings, prices: PriceTables, now: Callable[[], datetime]) -> None:
        self._ec2 = ec2
        self._settings = settings
        self._prices = prices
        self._now = now
        self._regions: ReadCache[str, _Region] = ReadCache(now, settings.catalogue_ttl_s)
        self._images: ReadCache[tuple[str, str, str], BootImage] = ReadCache(now, settings.catalogue_ttl_s)

    def price(self, region: str, instance_type: str) -> Price | None:
        """The on-demand price, from the settings or the newer table; None when neither has it."""
        own = self._settings.prices.get(instance_type)
        return by_settings(own) if own is not None else self._prices.find(region, instance_type)

    async def offers(self, *, spot: bool) -> list[Offer]:
        """On-demand offers of every type with a known price, and spot offers when `spot`."""
        parts = await all_of(self._offers_of(region, spot) for region in self._settings.regions)
        return [offer for part in parts for offer in part]

    async def _offers_of(self, region: str, spot: bool) -> list[Offer]:
        known = await self._regions.get(region, partial(self._region, region))
        if not known.types:
            return []
        wanted = [(known.types[name], zone) for name, zone in known.zones if self._zone_wanted(zone)]
        offers = list(self._on_demand(region, wanted))
        names = sorted({kind.name for kind, _ in wanted if kind.spot})
        if spot and names:
            now = self._now()
            found = spot_prices(await self._ec2.spot_prices(region, names, now))
            offers += [
                to_offer(kind, region, zone, Price(found[kind.name, zone], now, PriceSource.API), spot=True)
                for kind, zone in wanted
                if (kind.name, zone) in found
            ]
        return offers

    def _on_demand(self, region: str, wanted: Iterable[tuple[InstanceType, str]]) -> Iterable[Offer]:
        for kind, zone in wanted:
            price = self.price(region, kind.name)
            if price is not None and kind.on_demand:
                yield to_offer(kind, region, zone, price, spot=False)

    def _zone_wanted(self, zone: str) -> bool:
        return not self._settings.zones or zone in self._settings.zones

    async def _region(self, region: str) -> _Region:
        rows = await self._ec2.instance_types(region, self._settings.instance_types)
        types = {kind.name: kind for kind in map(to_instance_type, rows) if kind is not None}
        offered = await self._ec2.zones(region, sorted(types)) if types else []
        zones = tuple(sorted((str(row["InstanceType"]), str(row["Location"])) for row in offered))
        return _Region(types, tuple(pair for pair in zones if pair[0] in types))

    async def image(self, region: str, arch: str, image_id: str = "") -> BootImage:
        """The AMI to boot: the one with an id, or the one that the settings lead to.

        Raises:
            InvalidRequest: there is none; the text names the setting to change.
        """
        return await self._images.get((region, arch, image_id), partial(self._image, region, arch, image_id))

    def named_image(self, region: str, arch: str) -> str:
        """The AMI that the settings name; "" for none."""
        return self._settings.images.get(f"{region}/{arch}", "")

    async def _image(self, region: str, arch: str, image_id: str) -> BootImage:
        fixed = self.named_image(region, arch) or image_id
        name = self._settings.image_names.get(arch, "")
        owner = self._settings.image_owner
        rows = await self._ec2.images(region, image_id=fixed, owner=owner, name=name) if fixed or name else []
        image = newest_image(rows)
        if image is None:
            what = fixed or f"owner {owner}, name {name!r}"
            text = f'no AMI in {region} ({what}): set providers.aws.images."{region}/{arch}"'
            raise InvalidRequest(text, provider=AWS, operation="launch")
        return image
