"""PURE: what can still be read of a machine's record that is damaged.

A machine costs money and may run jobs, so its record is never passed over. Each field is read by itself. What cannot be
read takes its default, and the columns of the table stand in for the rest. `Machine.held` tells when meshd leaves such
a machine alone until a person says what becomes of it.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from meshd.model.ids import MachineName, PoolName, SlotName
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.provider_api import Offer

TOLD_AGAIN: Final = frozenset(
    {
        "facts", "munge_ok", "problem", "path", "auth_key", "spare_key", "heartbeat_at", "public_ip", "former_ips",
        "reason", "failure", "refusal", "vendor_words",
    }
)  # fmt: skip
"""Agents and clouds tell these again, or they are words for people: without them nothing is decided wrongly."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table of machines."""

    name: str
    pool: str
    slot: str
    provider: str
    instance_id: str
    phase: str
    record: str


def salvage(row: Row, now: datetime) -> tuple[Machine, tuple[str, ...]]:
    """A machine from what can be read of its row, and the fields that could not be.

    Args:
        row: as the table has it.
        now: UTC, for times that are lost.
    """
    found, lost = _read(Machine, _object(row.record))
    for name, value in (("name", row.name), ("pool", row.pool), ("slot", row.slot), ("provider", row.provider)):
        found[name] = value
        lost.discard(name)
    if row.instance_id or "instance_id" in lost:
        found["instance_id"] = row.instance_id
        lost.discard("instance_id")
    if row.phase in set(Phase):
        found["phase"] = Phase(row.phase)
        lost.discard("phase")
    phase = found.setdefault("phase", Phase.READY if row.instance_id else Phase.LAUNCHING)
    if "offer" not in found:
        offer, _ = _read(Offer, _object(row.record).get("offer"))
        found["offer"] = Offer(**{**_no_offer(row), **offer, "provider": row.provider})
    created = found.setdefault("created_at", found.get("phase_since", now))
    found.setdefault("phase_since", created)
    # What is lost must not let a machine be ended that may run jobs.
    if "slurmd_started" in lost:
        found["slurmd_started"] = phase in IN_SLURM
    if "munge_ok" in lost:
        found["munge_ok"] = phase in IN_SLURM
    if lost - TOLD_AGAIN:
        found["unreadable_since"] = now
    machine = Machine(**found)
    return machine, tuple(sorted(lost))


def _no_offer(row: Row) -> dict[str, Any]:
    """Stands in for an offer that cannot be read: nothing is known of its price and GPUs."""
    return {
        "provider": row.provider, "region": "", "zone": "", "instance_type": "unknown", "gpu": "", "gpus": 0,
        "gpu_memory_gib": 0, "vcpus": 0, "memory_mib": 0, "usd_per_hour": 0.0, "spot": False,
    }  # fmt: skip


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read(kind: type[Any], value: Any) -> tuple[dict[str, Any], set[str]]:
    """The fields of a dataclass that can be read, and the names of those that are needed or there, and cannot."""
    given = value if isinstance(value, dict) else {}
    found: dict[str, Any] = {}
    lost: set[str] = set()
    for one in fields(kind):
        needed = one.default is MISSING and one.default_factory is MISSING
        if one.name not in given:
            # Of a record that cannot be read at all, what has a default is lost as well.
            if needed or not given:
                lost.add(one.name)
            continue
        try:
            found[one.name] = _adapter((kind, one.name)).validate_json(json.dumps(given[one.name], allow_nan=False))
        except (ValidationError, ValueError, OverflowError, RecursionError):
            lost.add(one.name)
    return found, lost


@cache
def _adapter(of: tuple[type[Any], str]) -> TypeAdapter[Any]:
    kind, name = of
    names = {"MachineName": MachineName, "PoolName": PoolName, "SlotName": SlotName}
    return TypeAdapter(typing.get_type_hints(kind, localns=names)[name])
