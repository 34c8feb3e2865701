"""PURE: what can still be read of a machine's damaged record.

A machine costs money and may run jobs, so its record is never skipped. Each field is read by itself. One that cannot be
read takes its default, or the value in its column of the table. If a field is lost that matters, the machine is held
(`Machine.held`) until somebody removes it.
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

REPORTED_AGAIN: Final = frozenset(
    {
        "facts", "munge_ok", "problem", "path", "auth_key", "spare_key", "heartbeat_at", "public_ip", "former_ips",
        "reason", "failure", "refusal", "vendor_words",
    }
)  # fmt: skip
"""Agents and clouds report these fields again, or they are only shown to people: losing them leads to no wrong step."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table `machines`."""

    name: str
    pool: str
    slot: str
    provider: str
    instance_id: str
    phase: str
    record: str


def salvage(row: Row, now: datetime) -> tuple[Machine, tuple[str, ...]]:
    """The machine as far as its row can be read, and the names of the fields that are lost.

    Args:
        row: the row.
        now: UTC, in place of lost times.
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
    # A lost field must not lead to the end of a machine that may run jobs.
    if "slurmd_started" in lost:
        found["slurmd_started"] = phase in IN_SLURM
    if "munge_ok" in lost:
        found["munge_ok"] = phase in IN_SLURM
    if lost - REPORTED_AGAIN:
        found["unreadable_since"] = now
    machine = Machine(**found)
    return machine, tuple(sorted(lost))


def _no_offer(row: Row) -> dict[str, Any]:
    """The fields of an offer that cannot be read: its price and GPUs are not known."""
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
    """The fields of a dataclass that can be read, and the names of those that are there or needed and cannot be."""
    given = value if isinstance(value, dict) else {}
    found: dict[str, Any] = {}
    lost: set[str] = set()
    for one in fields(kind):
        needed = one.default is MISSING and one.default_factory is MISSING
        if one.name not in given:
            # Of a record that cannot be read at all, fields with a default are lost as well.
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
