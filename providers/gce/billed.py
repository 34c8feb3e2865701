"""PURE: what lies in a project of Compute Engine, out of its answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from shlex import quote
from typing import Any

from meshd.provider_api import CLUSTER_TAG, MACHINE_TAG, Billed, BilledKind
from providers._billed import HOURS_OF_MONTH, moment
from providers.gce.errors import GCE
from providers.gce.mapping import is_spot, last_part, region_of, to_id, type_of

Row = Mapping[str, Any]

GIB = 1024**3


def billed_machine(raw: Row, *, price: Callable[[str, str, bool], float | None]) -> Billed:
    """An instance. One that is stopped keeps its disk."""
    zone, name = last_part(raw.get("zone")), str(raw.get("name") or "")
    usd = price(region_of(zone), type_of(raw), is_spot(raw)) if raw.get("status") != "TERMINATED" else None
    return _billed(
        raw, BilledKind.MACHINE, to_id(zone, name), zone, f"instances delete {quote(name)} --zone {quote(zone)}",
        usd_per_hour=usd,
    )  # fmt: skip


def billed_volume(raw: Row) -> Billed:
    """A disk of a zone or a region, attached to the first of its users."""
    place, name = last_part(raw.get("zone") or raw.get("region")), str(raw.get("name") or "")
    where = "--zone" if raw.get("zone") else "--region"
    return _billed(
        raw, BilledKind.VOLUME, f"{place}/{name}", place, f"disks delete {quote(name)} {where} {quote(place)}",
        attached_to=_user(raw),
    )  # fmt: skip


def billed_address(raw: Row) -> Billed:
    """A static address of a region, or a global one."""
    region, name = last_part(raw.get("region")), str(raw.get("name") or "")
    where = f"--region {quote(region)}" if region else "--global"
    return _billed(
        raw, BilledKind.ADDRESS, f"{region or 'global'}/{name}", region, f"addresses delete {quote(name)} {where}",
        attached_to=_user(raw),
    )  # fmt: skip


def billed_snapshot(raw: Row) -> Billed:
    """A snapshot of a disk."""
    name = str(raw.get("name") or "")
    return _billed(raw, BilledKind.SNAPSHOT, name, "", f"snapshots delete {quote(name)}")


def billed_image(raw: Row, *, usd_per_gib_month: float) -> Billed:
    """An image of the project's own. It costs by its archive, which Google tells once it is made."""
    name, archive_b = str(raw.get("name") or ""), str(raw.get("archiveSizeBytes") or "")
    told = re.fullmatch("[0-9]{1,18}", archive_b)
    usd = int(archive_b) / GIB * usd_per_gib_month / HOURS_OF_MONTH if told else None
    return _billed(raw, BilledKind.IMAGE, name, "", f"images delete {quote(name)}", usd_per_hour=usd)


def _billed(raw: Row, kind: BilledKind, thing: str, region: str, ends: str, **more: Any) -> Billed:
    labels = raw.get("labels") or {}
    name = str(raw.get("name") or "")
    return Billed(
        GCE, kind, thing, name, region, str(labels.get(CLUSTER_TAG) or ""), str(labels.get(MACHINE_TAG) or name),
        created_at=moment(raw.get("creationTimestamp")), cure=f"gcloud compute {ends}", **more,
    )  # fmt: skip


def _user(raw: Row) -> str:
    """The id of the instance that has a disk or an address; of another kind of user its link."""
    users = raw.get("users") or ()
    if not users:
        return ""
    parts = str(users[0]).split("/")
    return to_id(parts[-3], parts[-1]) if len(parts) > 3 and parts[-2] == "instances" else str(users[0])
