"""The operations of the Compute API, which report the result of an insert or a delete."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from deploy.sandbox.clouds.gce_bodies import BASE, number
from deploy.sandbox.clouds.ledger import End, Ledger, Life, RentedMachine

#: HTTP status, code and message of a failed operation.
Failure = tuple[int, str, str]


@dataclass(slots=True)
class Operation:
    """One operation on a machine. Its result follows from the machine's state, unless it failed at once.

    `parts` are the inserts of a bulkInsert, whose `group` is its name. `never_done`: it never ends.
    """

    name: str
    kind: str
    zone: str
    target: str
    begun_at: datetime
    machine_id: str = ""
    failure: Failure | None = None
    group: str = ""
    parts: list[Operation] = field(default_factory=list)
    never_done: bool = False


class Operations:
    """All operations of one cloud.

    Args:
        ledger: the machines.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._operations: dict[str, Operation] = {}
        self._count = itertools.count(1)

    def find(self, name: str) -> Operation | None:
        """The operation with this name."""
        return self._operations.get(name)

    def of_zone(self, zone: str) -> list[Operation]:
        """All operations, including those of others."""
        self._ledger.observe()
        self._forget()
        return [one for one in (*self._operations.values(), *self._by_the_cloud()) if one.zone == zone]

    def begin(self, kind: str, zone: str, target: str, group: str = "") -> Operation:
        """Add an operation."""
        name = f"operation-{next(self._count):06d}-{number(target)[:8]}"
        self._operations[name] = Operation(name, kind, zone, target, self._ledger.now(), group=group)
        return self._operations[name]

    def _by_the_cloud(self) -> list[Operation]:
        """Operations without a call: preemptions, and deletes by somebody else."""
        return [
            Operation(
                name=f"systemevent-{machine.id}",
                kind="compute.instances.preempted" if machine.end is End.PREEMPTED else "delete",
                zone=machine.zone,
                target=machine.token,
                begun_at=at,
                machine_id=machine.id,
            )
            for machine in self._ledger.everything()
            if machine.end in (End.DIED, End.PREEMPTED)
            and (at := machine.end_asked_at or machine.ended_at) is not None
            and not self._old(at)
        ]

    def _old(self, at: datetime) -> bool:
        return self._ledger.now() > at + timedelta(seconds=self._ledger.rules.keep_s)

    def _forget(self) -> None:
        self._operations = {
            name: one
            for name, one in self._operations.items()
            if not self._old(one.begun_at) or (one.kind == "insert" and one.failure is None)
        }

    def body(self, project: str, one: Operation, *, fresh: bool = False) -> dict[str, Any]:
        """The vendor's Operation. A new one is never done."""
        zone = f"{BASE}/projects/{project}/zones/{one.zone}"
        machine = next((m for m in self._ledger.everything() if m.id == one.machine_id), None)
        failure = one.failure or _late_failure(one, machine)
        machines = {m.id: m for m in self._ledger.everything()} if one.parts else {}
        over = [_is_done(part, machines.get(part.machine_id)) for part in one.parts] or [_is_done(one, machine)]
        done = not (fresh or one.never_done) and (failure is not None or all(over))
        body: dict[str, Any] = {
            "kind": "compute#operation",
            "id": number(one.name),
            "name": one.name,
            "zone": zone,
            "operationType": one.kind,
            "targetLink": f"{zone}/instances/{one.target}",
            "targetId": one.machine_id or number(one.target),
            "status": "DONE" if done else "RUNNING",
            "user": "system" if one.kind.startswith("compute.") else "somebody@example.com",
            "progress": 100 if done else 0,
            "insertTime": one.begun_at.isoformat(timespec="milliseconds"),
            "startTime": one.begun_at.isoformat(timespec="milliseconds"),
            "selfLink": f"{zone}/operations/{one.name}",
        }
        if one.kind.startswith("compute."):
            body["statusMessage"] = "Instance was preempted."
        if one.group or one.parts:
            body["operationGroupId"] = number(one.group or one.name)
        if one.kind == "bulkInsert":
            del body["targetId"]
            body["targetLink"] = zone
            progress: dict[str, Any] = {"status": "DONE" if done else "CREATING", "targetVmCount": len(one.parts)}
            progress["createdVmCount"] = sum(over) if one.parts else 0
            body["instancesBulkInsertOperationMetadata"] = {"perLocationStatus": {f"zones/{one.zone}": progress}}
        if done and failure is not None:
            status, code, words = failure
            body["httpErrorStatusCode"] = status
            body["httpErrorMessage"] = "SERVICE UNAVAILABLE" if status == 503 else "FORBIDDEN"
            body["error"] = {"errors": [{"code": code, "message": words}]}
        return body


def _is_done(one: Operation, machine: RentedMachine | None) -> bool:
    if one.kind == "insert":
        return machine is None or machine.life is not Life.PENDING
    return machine is None or machine.life is Life.ENDED


def _late_failure(one: Operation, machine: RentedMachine | None) -> Failure | None:
    if one.kind != "insert" or machine is None or machine.end is not End.BOOT_FAILED:
        return None
    return 503, "INTERNAL_ERROR", machine.tags.get("sandbox-failure", "Internal error.")
