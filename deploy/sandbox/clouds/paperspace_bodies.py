"""Bodies of Paperspace's API: machines, events and startup scripts."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from deploy.sandbox.clouds.ledger import End, Life, RentedMachine, shown_life
from deploy.sandbox.clouds.paperspace_types import PaperspaceType
from meshd.contract.faults import FaultKind

_STATE = {Life.PENDING: "provisioning", Life.RUNNING: "ready", Life.ENDING: "stopping", Life.ENDED: "off"}


@dataclass(slots=True)
class Script:
    """A startup script of the account."""

    id: str
    name: str
    text: str
    is_run_once: bool
    created_at: datetime
    machine_ids: list[str] = field(default_factory=list)

    def body(self) -> dict[str, Any]:
        """The vendor's StartupScript, without its text."""
        return {
            "id": self.id,
            "name": self.name,
            "description": None,
            "isEnabled": True,
            "isRunOnce": self.is_run_once,
            "assignedMachineIds": self.machine_ids,
            "dtCreated": time_text(self.created_at),
            "dtDeleted": None,
        }


def machine_body(machine: RentedMachine, kind: PaperspaceType, content_faults: frozenset[FaultKind]) -> dict[str, Any]:
    """The vendor's Machine."""
    life = shown_life(machine, content_faults)
    state = "off" if life is Life.RUNNING and machine.powered_off else _STATE[life]
    if FaultKind.UNKNOWN_STATE in content_faults:
        state = "hibernating"
    up = life is Life.RUNNING and machine.address and not machine.faults.no_address
    body: dict[str, Any] = {
        "id": machine.id,
        "name": machine.token,
        "state": state,
        "os": "Ubuntu 22.04",
        "machineType": machine.instance_type,
        "agentType": "LinuxHeadless",
        "cpus": kind.cpus,
        "ram": kind.ram_gib * 1024**3,
        "storageTotal": 100 * 1024**3,
        "storageUsed": 0,
        "accelerators": kind.accelerators(),
        "region": machine.region,
        "privateIp": machine.address if up else None,
        "networkId": "nsandbox",
        "publicIp": machine.address if up else None,
        "publicIpType": "dynamic",
        "autoShutdownEnabled": False,
        "autoShutdownTimeout": None,
        "autoShutdownForce": False,
        "autoSnapshotEnabled": False,
        "autoSnapshotFrequency": None,
        "autoSnapshotSaveCount": None,
        "updatesPending": False,
        "restorePointEnabled": False,
        "restorePointFrequency": None,
        "restorePointSnapshotId": None,
        "usageRate": machine.usd_per_hour,
        "storageRate": 0.0,
        "dtCreated": time_text(machine.created_at),
        "dtModified": time_text(machine.created_at),
        "dtDeleted": None,
        "reservation": None,
    }
    if FaultKind.UNKNOWN_FIELDS in content_faults:
        body |= {"novelty": {"depth": 1}, "zz_list": [1, 2]}
    return body


def events_of(machine: RentedMachine) -> list[dict[str, Any]]:
    """A machine's events, newest first."""
    failed = machine.end is End.BOOT_FAILED
    state = "in progress" if machine.life is Life.PENDING else "error" if failed else "done"
    error = machine.tags.get("sandbox-failure", "the machine failed to start") if failed else None
    events = [event_body(machine, "create", state, machine.created_at, error)]
    if machine.life is Life.ENDING and machine.end_asked_at is not None:
        events.insert(0, event_body(machine, "deactivate", "in progress", machine.end_asked_at))
    elif machine.life is Life.ENDED and not failed:
        events.insert(0, event_body(machine, "deactivate", "done", machine.ended_at or machine.created_at))
    return events


def event_body(machine: RentedMachine, name: str, state: str, at: datetime, error: str | None = None) -> dict[str, Any]:
    """The vendor's Event."""
    over = state in ("done", "error", "cancelled")
    return {
        "id": uuid.uuid5(uuid.NAMESPACE_OID, f"{machine.id} {name}").hex,
        "name": name,
        "state": state,
        "machineId": machine.id,
        "dtCreated": time_text(at),
        "dtStarted": None if state == "new" else time_text(at),
        "dtFinished": time_text(at) if over else None,
        "error": error,
    }


def time_text(at: datetime) -> str:
    """A time in Paperspace's format."""
    milliseconds = math.floor(at.microsecond / 1000)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"
