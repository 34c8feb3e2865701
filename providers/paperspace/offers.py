"""Offers from the shipped table of machine types and the OS templates that start them. PURE: no I/O, no clock.

The vendor's API lists neither hardware nor prices of its machine types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

from meshd.errors import InvalidRequest
from meshd.provider_api import Offer, PriceSource
from providers.paperspace.errors import PAPERSPACE
from providers.paperspace.settings import PaperspaceSettings


@dataclass(frozen=True, slots=True)
class MachineType:
    """One machine type.

    Attributes:
        label: the vendor's name, in the spelling of its API.
        gpu: the normalised model; "" without GPUs.
        regions: codes of the regions that have the type.
    """

    label: str
    gpu: str
    gpu_memory_gib: int
    gpus: int
    vcpus: int
    memory_gib: int
    usd_per_hour: float
    regions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TypeTable:
    """All machine types that meshd knows.

    Attributes:
        as_of: the date of the list prices.
        types: by label in lower case, because the vendor uses both spellings.
    """

    as_of: datetime
    types: Mapping[str, MachineType]


def shipped() -> TypeTable:
    """The table in the package."""
    raw = json.loads(resources.files("providers.paperspace").joinpath("catalogue.json").read_text("utf-8"))
    types = {
        label.lower(): MachineType(label=label, **{**row, "regions": tuple(row["regions"])})
        for label, row in raw["types"].items()
    }
    return TypeTable(datetime.fromisoformat(raw["as_of"]).replace(tzinfo=UTC), types)


def template_for(
    label: str, *, gpus: int, templates: Sequence[Mapping[str, Any]], settings: PaperspaceSettings
) -> Mapping[str, Any] | None:
    """The OS template for a type; None when no wanted template can start it.

    Args:
        label: the type.
        gpus: with GPUs, `settings.templates` counts; without, `settings.cpu_templates`.
        templates: rows of GET /os-templates.
        settings: wanted names, or a fixed id.
    """
    fixed = settings.template_ids.get(label.lower())
    if fixed:
        return next((one for one in templates if one.get("id") == fixed), {"id": fixed})
    able = [one for one in templates if _starts(one, label)]
    for pattern in settings.templates if gpus else settings.cpu_templates:
        fitting = [one for one in able if any(fnmatchcase(name, pattern.lower()) for name in _names(one))]
        if fitting:
            return max(fitting, key=lambda one: str(one.get("dtCreated") or ""))
    return None


def _starts(template: Mapping[str, Any], label: str) -> bool:
    if "windows" in " ".join((str(template.get("agentType") or "").lower(), *_names(template))):
        return False
    return any(
        str(kind.get("machineTypeLabel") or "").lower() == label.lower() and kind.get("isAvailable")
        for kind in template.get("availableMachineTypes") or ()
    )


def _names(template: Mapping[str, Any]) -> tuple[str, str]:
    return str(template.get("name") or "").lower(), str(template.get("operatingSystemLabel") or "").lower()


def wanted_template(
    offer: Offer, templates: Sequence[Mapping[str, Any]], settings: PaperspaceSettings
) -> Mapping[str, Any]:
    """The OS template for an offer.

    Raises:
        InvalidRequest: there is none; the text names the settings to change.
    """
    found = template_for(offer.instance_type, gpus=offer.gpus, templates=templates, settings=settings)
    if found is None:
        names = sorted({name for one in templates if _starts(one, offer.instance_type) for name in _names(one)[:1]})
        text = (
            f"no OS template that starts {offer.instance_type} has a wanted name (there are: "
            f"{', '.join(names[:8]) or 'none'}); set providers.paperspace.templates or template_ids"
        )
        raise InvalidRequest(text, provider=PAPERSPACE, operation="launch")
    return found


def candidates(table: TypeTable, templates: Sequence[Mapping[str, Any]], settings: PaperspaceSettings) -> list[Offer]:
    """All offers that the settings want and a template can start. `available` is not filled in yet.

    A price in the settings replaces the shipped one.
    """
    types = [kind for kind in table.types.values() if _is_wanted(kind, templates, settings)]
    return [
        offer_of(kind, region, table, settings)
        for kind in types
        for region in settings.regions
        if region in kind.regions
    ]


def _is_wanted(kind: MachineType, templates: Sequence[Mapping[str, Any]], settings: PaperspaceSettings) -> bool:
    if not any(fnmatchcase(kind.label.lower(), pattern.lower()) for pattern in settings.machine_types):
        return False
    return template_for(kind.label, gpus=kind.gpus, templates=templates, settings=settings) is not None


def offer_of(kind: MachineType, region: str, table: TypeTable, settings: PaperspaceSettings) -> Offer:
    """The offer of a type in a region. `available` is not filled in."""
    own = settings.prices.get(kind.label.lower())
    return Offer(
        provider=PAPERSPACE,
        region=region,
        zone="",
        instance_type=kind.label,
        gpu=kind.gpu,
        gpus=kind.gpus,
        gpu_memory_gib=kind.gpu_memory_gib,
        vcpus=kind.vcpus,
        memory_mib=kind.memory_gib * 1024,
        usd_per_hour=kind.usd_per_hour if own is None else own,
        price_as_of=table.as_of if own is None else None,
        price_source=PriceSource.SHIPPED if own is None else PriceSource.SETTINGS,
    )
