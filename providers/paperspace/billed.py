"""PURE: what lies on a Paperspace team, out of its answers. Nothing there has tags: names tell whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any

from meshd.provider_api import Billed, BilledKind, InstanceState
from providers._billed import moment
from providers.paperspace.errors import PAPERSPACE
from providers.paperspace.mapping import region_code, to_instance

Row = Mapping[str, Any]
DELETE = 'curl -X DELETE -H "Authorization: Bearer $PAPERSPACE_API_KEY" https://api.paperspace.com/v1'


def billed_machine(raw: Row) -> Billed | None:
    """A machine that was not deleted."""
    one = to_instance(raw)
    if one.state is InstanceState.GONE:
        return None
    return Billed(
        PAPERSPACE, BilledKind.MACHINE, one.id, one.token, one.region, machine=one.token, created_at=one.launched_at,
        usd_per_hour=one.usd_per_hour, cure=f"{DELETE}/machines/{quote(one.id)}",
    )  # fmt: skip


def billed_address(raw: Row) -> Billed:
    """A static address."""
    ip = str(raw.get("ip") or "")
    return Billed(
        PAPERSPACE, BilledKind.ADDRESS, ip, region=region_code(str(raw.get("region") or "")),
        attached_to=str(raw.get("assignedToMachineId") or ""), created_at=moment(raw.get("dtCreated")),
        cure=f"{DELETE}/public-ips/{quote(ip)}",
    )  # fmt: skip


def billed_script(raw: Row) -> Billed:
    """A startup script. It costs nothing, and can hold a secret."""
    script_id, name = str(raw.get("id") or ""), str(raw.get("name") or "")
    return Billed(
        PAPERSPACE, BilledKind.SCRIPT, script_id, name, machine=name, created_at=moment(raw.get("dtCreated")),
        usd_per_hour=0.0, cure=f"{DELETE}/startup-scripts/{quote(script_id)}",
    )  # fmt: skip
