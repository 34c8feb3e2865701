"""Bodies of the Compute API: instances, and how numbers are written."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from deploy.sandbox.clouds.ledger import Life, RentedMachine, shown_life
from meshd.contract.faults import FaultKind

BASE = "https://www.googleapis.com/compute/v1"
DISK_GIB = 10
"""The least size of a boot disk."""


def instance_body(
    project: str, machine: RentedMachine, asked: Mapping[str, Any], content_faults: frozenset[FaultKind]
) -> dict[str, Any]:
    """The Instance for a machine; `asked` is the body of its create call."""
    zone_url = f"{BASE}/projects/{project}/zones/{machine.zone}"
    nic = {"kind": "compute#networkInterface", "name": "nic0", "network": f"{BASE}/{_network(asked)}"}
    access = {"kind": "compute#accessConfig", "name": "External NAT", "type": "ONE_TO_ONE_NAT"}
    life = shown_life(machine, content_faults)
    up = life is Life.RUNNING and bool(machine.address) and not machine.powered_off
    if up and not machine.faults.no_address:
        nic["networkIP"] = machine.address
        access["natIP"] = machine.address
    body: dict[str, Any] = {
        "kind": "compute#instance",
        "id": machine.id,
        "name": machine.token,
        "zone": zone_url,
        "selfLink": f"{zone_url}/instances/{machine.token}",
        "machineType": f"{zone_url}/machineTypes/{machine.instance_type}",
        "status": "DREAMING" if FaultKind.UNKNOWN_STATE in content_faults else _status(machine, life),
        "creationTimestamp": machine.created_at.isoformat(timespec="milliseconds"),
        "labels": machine.tags,
        "labelFingerprint": "c2FuZGJveA==",
        "metadata": {"kind": "compute#metadata", **(asked.get("metadata") or {})},
        "scheduling": asked.get("scheduling") or {},
        "networkInterfaces": [{**nic, "accessConfigs": [access]} if _public(asked) else nic],
    }
    if asked.get("disks"):
        body["disks"] = [_boot_disk(zone_url, machine, asked["disks"][0])]
    if asked.get("guestAccelerators"):
        body["guestAccelerators"] = asked["guestAccelerators"]
    if FaultKind.UNKNOWN_FIELDS in content_faults:
        body |= {"novelty": {"depth": 1}, "zzList": [1, 2]}
    return body


def boot_disk_gib(asked: Mapping[str, Any]) -> int:
    """The size of the boot disk that a create call asks for."""
    disk: Mapping[str, Any] = next(iter(asked.get("disks") or ()), {})
    return int((disk.get("initializeParams") or {}).get("diskSizeGb") or DISK_GIB)


def _boot_disk(zone_url: str, machine: RentedMachine, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The AttachedDisk. A boot disk that is not named otherwise is called like its machine."""
    return {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": "READ_WRITE",
        "source": f"{zone_url}/disks/{machine.token}",
        "deviceName": "persistent-disk-0",
        "index": 0,
        "boot": bool(asked.get("boot")),
        "autoDelete": bool(asked.get("autoDelete")),
        "diskSizeGb": str((asked.get("initializeParams") or {}).get("diskSizeGb") or DISK_GIB),
    }


def number(text: str) -> str:
    """A 64-bit number as text, like Google's ids."""
    raw = text.encode()
    return str((zlib.crc32(raw) << 31) | zlib.adler32(raw) | 1 << 62)


def _status(machine: RentedMachine, life: Life) -> str:
    if life is Life.ENDING:
        return "STOPPING"
    if machine.powered_off:
        return "TERMINATED"
    return "RUNNING" if life is Life.RUNNING else "STAGING"


def _network(asked: Mapping[str, Any]) -> str:
    nic: Mapping[str, Any] = next(iter(asked.get("networkInterfaces") or ()), {})
    return str(nic.get("network") or "global/networks/default")


def _public(asked: Mapping[str, Any]) -> bool:
    return any(nic.get("accessConfigs") for nic in asked.get("networkInterfaces") or ())
