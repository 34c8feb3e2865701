"""A stand-in for the Compute API v1: stateful, with operations that fail after the call, and faults on demand.

Whoever asks without credentials is let in, and so is a token that a service account has signed, of any key.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from aiohttp import web

from deploy.sandbox.clouds.faults import AFTER, CUTS, Fault, FaultEngine, Kind, Struck
from deploy.sandbox.clouds.gce_rules import Wrong, cards_of, checked, metadata_of
from deploy.sandbox.clouds.gce_types import ACCELERATORS, TYPES, ZONES
from deploy.sandbox.clouds.ledger import Birth, End, Ledger, Life, Machine
from providers.gce.prices import shipped

HTML = "<html><head><title>502 Bad Gateway</title></head><body>gateway</body></html>"
BASE = "https://www.googleapis.com/compute/v1"
PREFIX = "/compute/v1/projects/{project}"
_FALLBACK_USD_PER_HOUR = 1.0
_BODY_MAX_B = 4 * 1024 * 1024
#: The faults of the request that this task answers.
_STRUCK: ContextVar[Struck] = ContextVar("struck")
_TEXT_FILTER = re.compile(r'(\S+) (eq|ne) "(.*)"')
_LABEL_FILTER = re.compile(r"labels\.([a-z0-9_-]+) ?= ?\"?([a-z0-9_-]*)\"?")
#: Refusals that come in the operation, after a call that went well.
_LATE = {
    Kind.NO_CAPACITY: (
        503,
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "The zone '{zone}' does not have enough resources available to fulfill the request. Try a different zone.",
    ),
    Kind.QUOTA: (403, "QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."),
}
_AT_ONCE = {
    Kind.NO_CAPACITY: (503, "insufficientCapacity", "Not enough resources."),
    Kind.QUOTA: (403, "quotaExceeded", "Quota exceeded."),
    Kind.THROTTLED: (403, "rateLimitExceeded", "Rate Limit Exceeded"),
    Kind.AUTH: (403, "forbidden", "Required 'compute.instances.create' permission for 'projects/sandbox'"),
    Kind.INVALID: (400, "invalid", "Invalid value for field 'resource.machineType'."),
}


@dataclass(slots=True)
class Operation:
    """One operation on a machine. What has become of it is read off the machine, unless it failed at once."""

    name: str
    kind: str
    zone: str
    target: str
    begun_at: datetime
    machine_id: str = ""
    failure: tuple[int, str, str] | None = None


class GceCloud:
    """The stand-in as an aiohttp application.

    Args:
        ledger: the machines.
        faults: what goes wrong.
    """

    def __init__(self, ledger: Ledger, faults: FaultEngine) -> None:
        self.ledger = ledger
        self.faults = faults
        self._prices = shipped()
        self._ids: dict[tuple[str, str], str] = {}
        self._bodies: dict[str, dict[str, Any]] = {}
        self._operations: dict[str, Operation] = {}
        self._requests: dict[str, str] = {}
        self._closing = asyncio.Event()

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(middlewares=[self._middleware], client_max_size=_BODY_MAX_B)
        zone = PREFIX + "/zones/{zone}"
        app.add_routes(
            [
                web.get(PREFIX + "/aggregated/instances", self._list),
                web.get(PREFIX + "/aggregated/machineTypes", self._machine_types),
                web.get(PREFIX + "/aggregated/acceleratorTypes", self._accelerator_types),
                web.post(zone + "/instances", self._insert),
                web.get(zone + "/instances/{name}", self._get),
                web.delete(zone + "/instances/{name}", self._delete),
                web.get(zone + "/operations", self._operation_list),
                web.get(zone + "/operations/{name}", self._operation),
            ]
        )
        return app

    def close(self) -> None:
        """Let slow answers go."""
        self._closing.set()

    def forget_requests(self) -> None:
        """Forget the request ids, as Google does after a time that it does not tell."""
        self._requests.clear()

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        operation = _operation_of(request)
        struck = self.faults.take(operation)
        _STRUCK.set(struck)
        late = operation == "launch" and struck.before is not None and struck.before.kind in _LATE
        try:
            _admit(request)
            if struck.before is not None and not late:
                return _spoiled(request, struck.before)
            response = await handler(request)
        except Wrong as wrong:
            response = _refused(wrong.status, wrong.reason, wrong.message)
        except web.HTTPNotFound:
            response = _refused(404, "notFound", "Not Found")
        if struck.after is None:
            return response
        if struck.after.kind is not Kind.SLOW:
            return _spoiled(request, struck.after)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), struck.after.seconds)
        return response

    # --- machines

    async def _insert(self, request: web.Request) -> web.Response:
        zone, request_id = request.match_info["zone"], request.query.get("requestId", "")
        if request_id in self._requests:
            return web.json_response(self._operation_body(request, self._operations[self._requests[request_id]]))
        body = await request.json()
        kind = checked(body, zone)
        name = str(body["name"])
        taken = self._ids.get((zone, name))
        machine = None if taken is None else self._alive(taken)
        if machine is not None:
            path = f"projects/{request.match_info['project']}/zones/{zone}/instances/{name}"
            raise Wrong(409, "alreadyExists", f"The resource '{path}' already exists")
        operation = self._begin("insert", zone, name)
        self._requests[request_id or operation.name] = operation.name
        failure = self._why_not(kind.name, zone)
        if failure is not None:
            operation.failure = failure
        else:
            self._born(body, zone, operation)
        return web.json_response(self._operation_body(request, operation, fresh=True))

    def _why_not(self, kind: str, zone: str) -> tuple[int, str, str] | None:
        struck = _STRUCK.get()
        if struck.before is not None and struck.before.kind in _LATE:
            status, code, words = _LATE[struck.before.kind]
        elif not self.ledger.has_room(kind, zone, zone.rpartition("-")[0]):
            status, code, words = _LATE[Kind.NO_CAPACITY]
        else:
            return None
        return status, code, words.format(zone=zone)

    def _born(self, body: dict[str, Any], zone: str, operation: Operation) -> None:
        kind = TYPES[str(body["machineType"]).rpartition("/")[2]]
        region, name = zone.rpartition("-")[0], str(body["name"])
        card, count = cards_of(body, kind)
        spot = (body.get("scheduling") or {}).get("provisioningModel") == "SPOT"
        price = self._prices.find(region, kind.name, spot=spot)
        extra = self._prices.find_attached(region, card, spot=spot) if body.get("guestAccelerators") else 0.0
        machine_id = _number(f"{zone}/{name}/{operation.name}")
        self._ids[zone, name] = machine_id
        self._bodies[machine_id] = body
        operation.machine_id = machine_id
        self.ledger.add(
            Birth(
                id=machine_id,
                token=name,
                region=region,
                zone=zone,
                instance_type=kind.name,
                gpus=count,
                gpu_name=ACCELERATORS[card].gpu_name if card else "",
                usd_per_hour=(price or _FALLBACK_USD_PER_HOUR) + count * (extra or 0.0),
                user_data=metadata_of(body).get("startup-script", ""),
                spot=spot,
                tags=dict(body.get("labels") or {}),
            ),
            _STRUCK.get(),
        )

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._body(request, self._known(request), _STRUCK.get().looks))

    async def _delete(self, request: web.Request) -> web.Response:
        machine = self._known(request)
        if machine.life is Life.ENDING:
            raise Wrong(400, "resourceNotReady", f"The resource '{_path(request, machine)}' is not ready")
        self.ledger.ask_end(machine.id)
        operation = self._begin("delete", machine.zone, machine.token)
        operation.machine_id = machine.id
        return web.json_response(self._operation_body(request, operation, fresh=True))

    async def _list(self, request: web.Request) -> web.Response:
        looks = _STRUCK.get().looks
        wanted = _LABEL_FILTER.fullmatch(request.query.get("filter", ""))
        if request.query.get("filter") and wanted is None:
            raise Wrong(400, "invalid", "Invalid value for field 'filter'.")
        scopes: dict[str, list[dict[str, Any]]] = {zone: [] for zone in ZONES}
        for machine in self.ledger.listed():
            fits = wanted is None or machine.tags.get(wanted[1]) == wanted[2]
            if fits and machine.life is not Life.ENDED:
                scopes[machine.zone].append(self._body(request, machine, looks))
        return self._aggregated(request, "instance", "instances", scopes)

    def _alive(self, machine_id: str) -> Machine | None:
        machine = self.ledger.find(machine_id)
        return None if machine is None or machine.life is Life.ENDED else machine

    def _known(self, request: web.Request) -> Machine:
        zone, name = request.match_info["zone"], request.match_info["name"]
        machine_id = self._ids.get((zone, name))
        machine = None if machine_id is None else self._alive(machine_id)
        if machine is None:
            path = f"projects/{request.match_info['project']}/zones/{zone}/instances/{name}"
            raise Wrong(404, "notFound", f"The resource '{path}' was not found")
        return machine

    def _body(self, request: web.Request, machine: Machine, looks: frozenset[Kind]) -> dict[str, Any]:
        asked = self._bodies[machine.id]
        zone_url = f"{BASE}/projects/{request.match_info['project']}/zones/{machine.zone}"
        nic = {"kind": "compute#networkInterface", "name": "nic0", "network": f"{BASE}/{_network(asked)}"}
        access = {"kind": "compute#accessConfig", "name": "External NAT", "type": "ONE_TO_ONE_NAT"}
        up = machine.life is Life.RUNNING and bool(machine.address) and not machine.powered_off
        if up and not machine.fate.no_address:
            nic["networkIP"] = machine.address
            access["natIP"] = machine.address
        body: dict[str, Any] = {
            "kind": "compute#instance",
            "id": machine.id,
            "name": machine.token,
            "zone": zone_url,
            "selfLink": f"{zone_url}/instances/{machine.token}",
            "machineType": f"{zone_url}/machineTypes/{machine.instance_type}",
            "status": "DREAMING" if Kind.UNKNOWN_STATE in looks else _status(machine),
            "creationTimestamp": machine.created_at.isoformat(timespec="milliseconds"),
            "labels": machine.tags,
            "labelFingerprint": "c2FuZGJveA==",
            "metadata": {"kind": "compute#metadata", **(asked.get("metadata") or {})},
            "scheduling": asked.get("scheduling") or {},
            "networkInterfaces": [{**nic, "accessConfigs": [access]} if _public(asked) else nic],
        }
        if asked.get("guestAccelerators"):
            body["guestAccelerators"] = asked["guestAccelerators"]
        if Kind.UNKNOWN_FIELDS in looks:
            body |= {"novelty": {"depth": 1}, "zzList": [1, 2]}
        return body

    # --- types

    async def _machine_types(self, request: web.Request) -> web.Response:
        wanted = _text_filter(request.query.get("filter", ""))
        scopes = {
            zone: [
                kind.body(zone, number)
                for number, kind in enumerate(TYPES.values())
                if zone in kind.zones and wanted(kind.name)
            ]
            for zone in ZONES
        }
        return self._aggregated(request, "machineType", "machineTypes", scopes)

    async def _accelerator_types(self, request: web.Request) -> web.Response:
        scopes = {zone: [one.body(zone, n) for n, one in enumerate(ACCELERATORS.values())] for zone in ZONES}
        return self._aggregated(request, "acceleratorType", "acceleratorTypes", scopes)

    def _aggregated(
        self, request: web.Request, kind: str, key: str, scopes: dict[str, list[dict[str, Any]]]
    ) -> web.Response:
        nothing = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results for scope on this page."}}
        items = {f"zones/{zone}": {key: rows} if rows else nothing for zone, rows in scopes.items()}
        return web.json_response(
            {
                "kind": f"compute#{kind}AggregatedList",
                "id": f"projects/{request.match_info['project']}/aggregated/{key}",
                "items": items,
                "selfLink": f"{BASE}/projects/{request.match_info['project']}/aggregated/{key}",
            }
        )

    # --- operations

    async def _operation(self, request: web.Request) -> web.Response:
        found = self._operations.get(request.match_info["name"])
        if found is None:
            raise Wrong(404, "notFound", "The operation was not found")
        return web.json_response(self._operation_body(request, found))

    async def _operation_list(self, request: web.Request) -> web.Response:
        wanted = _text_filter(request.query.get("filter", ""))
        self.ledger.observe()
        self._forget()
        rows = [
            self._operation_body(request, one)
            for one in (*self._operations.values(), *self._by_the_cloud())
            if one.zone == request.match_info["zone"]
        ]
        items = [row for row in rows if wanted(str(row["targetLink"]))]
        zone = f"{BASE}/projects/{request.match_info['project']}/zones/{request.match_info['zone']}"
        return web.json_response({"kind": "compute#operationList", "id": "1", "selfLink": zone, "items": items})

    def _begin(self, kind: str, zone: str, target: str) -> Operation:
        name = f"operation-{len(self._operations) + 1:06d}-{_number(target)[:8]}"
        self._operations[name] = Operation(name, kind, zone, target, self.ledger.now())
        return self._operations[name]

    def _by_the_cloud(self) -> list[Operation]:
        """What nobody of ours asked for: machines that were taken back, or that somebody else has deleted."""
        return [
            Operation(
                name=f"systemevent-{machine.id}",
                kind="compute.instances.preempted" if machine.spot else "delete",
                zone=machine.zone,
                target=machine.token,
                begun_at=machine.ended_at or machine.created_at,
                machine_id=machine.id,
            )
            for machine in self.ledger.everything()
            if machine.end is End.DIED and machine.ended_at is not None and not self._old(machine.ended_at)
        ]

    def _old(self, at: datetime) -> bool:
        return self.ledger.now() > at + timedelta(seconds=self.ledger.rules.keep_s)

    def _forget(self) -> None:
        self._operations = {
            name: one
            for name, one in self._operations.items()
            if not self._old(one.begun_at) or (one.kind == "insert" and one.failure is None)
        }

    def _operation_body(self, request: web.Request, one: Operation, *, fresh: bool = False) -> dict[str, Any]:
        zone = f"{BASE}/projects/{request.match_info['project']}/zones/{one.zone}"
        machine = next((m for m in self.ledger.everything() if m.id == one.machine_id), None)
        failure = one.failure or _late_failure(one, machine)
        done = not fresh and (failure is not None or _is_done(one, machine))
        body: dict[str, Any] = {
            "kind": "compute#operation",
            "id": _number(one.name),
            "name": one.name,
            "zone": zone,
            "operationType": one.kind,
            "targetLink": f"{zone}/instances/{one.target}",
            "targetId": one.machine_id or _number(one.target),
            "status": "DONE" if done else "RUNNING",
            "user": "system" if one.kind.startswith("compute.") else "somebody@example.com",
            "progress": 100 if done else 0,
            "insertTime": one.begun_at.isoformat(timespec="milliseconds"),
            "startTime": one.begun_at.isoformat(timespec="milliseconds"),
            "selfLink": f"{zone}/operations/{one.name}",
        }
        if one.kind.startswith("compute."):
            body["statusMessage"] = "Instance was preempted."
        if done and failure is not None:
            status, code, words = failure
            body["httpErrorStatusCode"] = status
            body["httpErrorMessage"] = "SERVICE UNAVAILABLE" if status == 503 else "FORBIDDEN"
            body["error"] = {"errors": [{"code": code, "message": words}]}
        return body


def _is_done(one: Operation, machine: Machine | None) -> bool:
    if one.kind == "insert":
        return machine is None or machine.life is not Life.PENDING
    return machine is None or machine.life is Life.ENDED


def _late_failure(one: Operation, machine: Machine | None) -> tuple[int, str, str] | None:
    if one.kind != "insert" or machine is None or machine.end is not End.BOOT_FAILED:
        return None
    return 503, "INTERNAL_ERROR", machine.tags.get("sandbox-failure", "Internal error.")


def _status(machine: Machine) -> str:
    if machine.life is Life.ENDING:
        return "STOPPING"
    if machine.powered_off:
        return "TERMINATED"
    return "RUNNING" if machine.life is Life.RUNNING else "STAGING"


def _network(asked: dict[str, Any]) -> str:
    nic: dict[str, Any] = next(iter(asked.get("networkInterfaces") or ()), {})
    return str(nic.get("network") or "global/networks/default")


def _public(asked: dict[str, Any]) -> bool:
    return any(nic.get("accessConfigs") for nic in asked.get("networkInterfaces") or ())


def _path(request: web.Request, machine: Machine) -> str:
    return f"projects/{request.match_info['project']}/zones/{machine.zone}/instances/{machine.token}"


def _text_filter(text: str) -> Callable[[str], bool]:
    if not text:
        return lambda _: True
    found = _TEXT_FILTER.fullmatch(text)
    if found is None:
        raise Wrong(400, "invalid", "Invalid value for field 'filter'.")
    pattern, negative = re.compile(found[3]), found[2] == "ne"
    return lambda value: (pattern.fullmatch(value) is None) is negative


def _number(text: str) -> str:
    """A 64-bit number as text, as Google's ids are."""
    raw = text.encode()
    return str((zlib.crc32(raw) << 31) | zlib.adler32(raw) | 1 << 62)


def _operation_of(request: web.Request) -> str:
    path, method = request.path, request.method
    if path.endswith("/aggregated/instances"):
        return "list"
    if "/aggregated/" in path:
        return "offers"
    if "/instances" in path:
        return {"POST": "launch", "DELETE": "terminate"}.get(method, "get")
    return "other"


def _admit(request: web.Request) -> None:
    given = request.headers.get("Authorization")
    if given is not None and not _is_signed(given.removeprefix("Bearer ")):
        words = "Request had invalid authentication credentials. Expected OAuth 2 access token."
        raise Wrong(401, "authError", words)


def _is_signed(token: str) -> bool:
    """Whether it has the form of a JWT of a service account's. Nobody knows the key, so the signature is not proven."""
    _, _, rest = token.partition(".")
    claims, dot, signature = rest.partition(".")
    try:
        said = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    except ValueError:
        return False
    return bool(dot and signature) and str(said.get("iss", "")).endswith(".gserviceaccount.com")


def _refused(status: int, reason: str, message: str, retry_after_s: float = 0) -> web.Response:
    error = {"code": status, "message": message, "errors": [{"message": message, "domain": "global", "reason": reason}]}
    headers = {"Retry-After": f"{retry_after_s:g}"} if retry_after_s else {}
    return web.json_response({"error": error}, status=status, headers=headers)


def _spoiled(request: web.Request, fault: Fault) -> web.StreamResponse:
    if fault.kind in CUTS:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()  # to nobody
    if fault.kind in (Kind.HTML, Kind.HTML_AFTER):
        status = 200 if fault.kind in AFTER else 502
        return web.Response(text=HTML, content_type="text/html", status=status)
    status, reason, words = _AT_ONCE.get(fault.kind, (fault.status, "backendError", "Backend Error"))
    return _refused(status, reason, words, fault.seconds if fault.kind in _AT_ONCE else 0)
