"""Offers from Google's machine types and accelerator types. PURE: no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import Any

from meshd.gpus import normalise, sold_gb
from meshd.provider_api import Offer
from providers._prices import Price, PriceTables, by_settings
from providers.gce.errors import GCE
from providers.gce.mapping import last_part, region_of
from providers.gce.settings import ATTACHED, GceSettings

#: By accelerator type: the normalised model and one GPU's memory in GB as it is sold. Google's API has neither.
_GPUS = {
    "nvidia-l4": ("l4", 24),
    "nvidia-tesla-t4": ("t4", 16),
    "nvidia-tesla-p4": ("p4", 8),
    "nvidia-tesla-p100": ("p100-pcie", 16),
    "nvidia-tesla-v100": ("v100-sxm", 16),
    "nvidia-tesla-a100": ("a100-sxm", 40),
    "nvidia-a100-80gb": ("a100-sxm", 80),
    "nvidia-h100-80gb": ("h100-sxm", 80),
    "nvidia-h100-mega-80gb": ("h100-sxm", 80),
    "nvidia-h200-141gb": ("h200-sxm", 141),
    "nvidia-b200": ("b200", 180),
    "nvidia-rtx-pro-6000": ("rtx-pro-6000", 96),
}
_UNUSABLE = frozenset({"OBSOLETE", "DELETED"})
_GIB = re.compile(r"(\d+)gb")


@dataclass(frozen=True, slots=True)
class MachineType:
    """A row of machineTypes, with attached GPUs.

    Attributes:
        name: as in offers.
        accelerator: Google's accelerator type; "" for none.
        attached: the GPUs are not part of the type and have a price of their own.
    """

    name: str
    zone: str
    accelerator: str
    gpus: int
    vcpus: int
    memory_mib: int
    arch: str
    attached: bool = False

    @property
    def base(self) -> str:
        """Google's name of the machine type, without attached GPUs."""
        return self.name.partition("+")[0]


def to_gpu(accelerator: str) -> tuple[str, int]:
    """The normalised model and one GPU's memory in GB as it is sold; 0 when it is unknown and not in the name."""
    if accelerator in _GPUS:
        return _GPUS[accelerator]
    size = _GIB.search(accelerator)
    return normalise(accelerator.replace("-", " ")), sold_gb(int(size[1]) * 1024) if size else 0


def to_machine_type(raw: Mapping[str, Any], zone: str) -> MachineType | None:
    """A type that meshd can use; None when it is withdrawn or its accelerators are not NVIDIA GPUs."""
    cards = raw.get("accelerators") or ()
    kinds = {str(card.get("guestAcceleratorType", "")) for card in cards}
    withdrawn = (raw.get("deprecated") or {}).get("state") in _UNUSABLE
    if withdrawn or any(not kind.startswith("nvidia-") or kind.endswith("-vws") for kind in kinds):
        return None
    return MachineType(
        name=str(raw["name"]),
        zone=zone,
        accelerator=next(iter(sorted(kinds)), ""),
        gpus=sum(int(card.get("guestAcceleratorCount", 0)) for card in cards),
        vcpus=int(raw.get("guestCpus", 0)),
        memory_mib=int(raw.get("memoryMb", 0)),
        arch="arm64" if raw.get("architecture") == "ARM64" else "x86_64",
    )


def name_filter(settings: GceSettings) -> str:
    """The filter of machineTypes.aggregatedList for the types of the settings: an RE2 expression."""
    bases = [attached[1] for text in settings.attached_gpus if (attached := ATTACHED.fullmatch(text))]
    parts = [_to_re2(pattern) for pattern in (*settings.instance_types, *bases)]
    return f'name eq "({"|".join(dict.fromkeys(parts))})"'


def _to_re2(pattern: str) -> str:
    """A wildcard pattern as an RE2 expression. Names have no characters that RE2 treats specially."""
    return pattern.replace("?", ".").replace("*", ".*")


def usable_types(
    scopes: Mapping[str, Iterable[Mapping[str, Any]]],
    cards: Mapping[str, Iterable[Mapping[str, Any]]],
    settings: GceSettings,
) -> list[MachineType]:
    """The wanted types in the wanted zones.

    Args:
        scopes: rows of machineTypes by zone.
        cards: rows of acceleratorTypes by zone; needed for attached GPUs only.
        settings: name the wanted types and zones.
    """
    wanted = [re.compile(translate(pattern)) for pattern in settings.instance_types]
    found: list[MachineType] = []
    for zone, rows in scopes.items():
        if not zone_wanted(zone, settings):
            continue
        types = {kind.name: kind for kind in (to_machine_type(row, zone) for row in rows) if kind is not None}
        found += [kind for name, kind in types.items() if any(pattern.match(name) for pattern in wanted)]
        found += _with_attached(zone, types, cards.get(zone, ()), settings)
    return found


def _with_attached(
    zone: str, types: Mapping[str, MachineType], cards: Iterable[Mapping[str, Any]], settings: GceSettings
) -> Iterator[MachineType]:
    most = {str(card["name"]): int(card.get("maximumCardsPerInstance", 0)) for card in cards}
    for text in settings.attached_gpus:
        parts = ATTACHED.fullmatch(text)
        base = types.get(parts[1]) if parts else None
        if parts is None or base is None or not 0 < int(parts[3]) <= most.get(parts[2], 0):
            continue
        yield MachineType(text, zone, parts[2], int(parts[3]), base.vcpus, base.memory_mib, base.arch, attached=True)


def zone_wanted(zone: str, settings: GceSettings) -> bool:
    """Whether the settings want machines in a zone."""
    return zone in settings.zones if settings.zones else region_of(zone) in settings.regions


def price_of(name: str, region: str, settings: GceSettings, prices: PriceTables, *, spot: bool) -> Price | None:
    """The price of a machine, from the settings or the newer table; None when neither has it.

    The price of an N1 with GPUs is the sum of two, and is dated like the older one.
    """
    own = (settings.spot_prices if spot else settings.prices).get(name)
    if own is not None:
        return by_settings(own)
    attached = ATTACHED.fullmatch(name)
    if attached is None:
        return prices.find(region, name, spot=spot)
    machine = prices.find(region, attached[1], spot=spot)
    card = prices.find(region, attached[2], spot=spot)
    if machine is None or card is None:
        return None
    older = min((machine, card), key=lambda one: one.as_of.timestamp() if one.as_of else 0.0)
    return replace(older, usd_per_hour=round(machine.usd_per_hour + int(attached[3]) * card.usd_per_hour, 5))


def to_offers(kinds: Iterable[MachineType], settings: GceSettings, prices: PriceTables) -> list[Offer]:
    """One offer for each type, zone and way to rent that has a price. Google does not report free capacity."""
    ways = (False, True) if settings.spot else (False,)
    priced = (
        (kind, way, price_of(kind.name, region_of(kind.zone), settings, prices, spot=way))
        for kind in kinds
        for way in ways
    )
    return [_offer(kind, price, way) for kind, way, price in priced if price is not None]


def _offer(kind: MachineType, price: Price, spot: bool) -> Offer:
    gpu, memory_gib = to_gpu(kind.accelerator) if kind.gpus else ("", 0)
    return Offer(
        provider=GCE,
        region=region_of(kind.zone),
        zone=kind.zone,
        instance_type=kind.name,
        gpu=gpu,
        gpus=kind.gpus,
        gpu_memory_gib=memory_gib,
        vcpus=kind.vcpus,
        memory_mib=kind.memory_mib,
        usd_per_hour=price.usd_per_hour,
        spot=spot,
        arch=kind.arch,
        available=None,
        price_as_of=price.as_of,
        price_source=price.source,
    )


def by_zone(scopes: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, list[Mapping[str, Any]]]:
    """The rows of an aggregated list by zone, without those of regions and of the global scope."""
    return {last_part(scope): list(part.get(key) or ()) for scope, part in scopes.items() if scope.startswith("zones/")}
