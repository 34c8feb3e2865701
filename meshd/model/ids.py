"""Names of pools, slots and machines, and how they are made of each other."""

from __future__ import annotations

import re
from typing import NewType

PoolName = NewType("PoolName", str)
SlotName = NewType("SlotName", str)
MachineName = NewType("MachineName", str)

UNIQUE_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
UNIQUE_LENGTH = 6


def slot_name(pool: str, index: int) -> SlotName:
    """The Slurm NodeName of the pool's slot `index`, counted from 1: `a100-3`."""
    return SlotName(f"{pool}-{index}")


def slot_index(pool: str, slot: str) -> int | None:
    """The index of a slot of this pool; None when it is no slot of this pool."""
    prefix, _, number = slot.rpartition("-")
    return int(number) if prefix == pool and re.fullmatch(r"[1-9][0-9]*", number) else None


def slot_order(slot: str) -> tuple[str, int]:
    """A sort key: by pool, then by index."""
    pool, _, number = slot.rpartition("-")
    return pool, int(number) if number.isdigit() else 0


def job_order(job: str) -> tuple[int, str]:
    """A sort key: job ids by number, an array's tasks after each other."""
    number = job.partition("_")[0]
    return (int(number) if number.isdigit() else 0), job


def machine_name(cluster: str, slot: str, unique: str) -> MachineName:
    """A machine's name, used once: also its idempotency token, its name tag at the cloud and its tailnet hostname."""
    return MachineName(f"{cluster}-{slot}-{unique}")


def parse_machine_name(cluster: str, name: str) -> SlotName | None:
    """The slot that a machine of this cluster was made for; None when the name has another form or cluster."""
    if not name.startswith(f"{cluster}-"):
        return None
    match = re.fullmatch(
        rf"(?P<slot>[a-z][-a-z0-9]*-[0-9]+)-[a-z0-9]{{{UNIQUE_LENGTH}}}", name.removeprefix(f"{cluster}-")
    )
    return SlotName(match["slot"]) if match else None
