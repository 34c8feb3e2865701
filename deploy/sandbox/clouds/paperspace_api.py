"""A stand-in for Paperspace's API v1: stateful, with its wrapped answers, events and startup scripts."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from aiohttp import web

from deploy.sandbox.clouds.faults import AFTER, CUTS, Fault, FaultEngine, Kind, Struck
from deploy.sandbox.clouds.host import Host
from deploy.sandbox.clouds.ledger import Birth, End, Ledger, Life, Machine
from deploy.sandbox.clouds.paperspace_types import DISKS_GB, REGIONS, TEMPLATES, TYPES, PaperspaceType

HTML = "<html><head><title>502 Bad Gateway</title></head><body>gateway</body></html>"
NO_ROOM = (
    "We are currently out of capacity for the selected VM type. Try again in a few minutes, or select a different "
    "instance."
)
_STATE = {Life.PENDING: "provisioning", Life.RUNNING: "ready", Life.ENDING: "stopping", Life.ENDED: "off"}
#: The faults of the request that this task answers.
_STRUCK: ContextVar[Struck] = ContextVar("paperspace_struck")
_SLOTS = {
    ("GET", "/v1/os-templates"): "offers",
    ("GET", "/v1/machine-availability"): "offers",
    ("POST", "/v1/machines"): "launch",
    ("GET", "/v1/machines"): "list",
    ("GET", "/v1/auth/session"): "check",
}


class Refused(Exception):
    """Paperspace's own kind of no."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0) -> None:
        self.status = status
        self.headers = {"Retry-After": f"{retry_after_s:g}"} if retry_after_s else {}
        self.body = {"code": code, "message": message}
        super().__init__(code)


def _refusal(fault: Fault) -> Refused:
    table: dict[Kind, tuple[int, str, str]] = {
        Kind.NO_CAPACITY: (400, "BAD_REQUEST", NO_ROOM),
        Kind.QUOTA: (403, "FORBIDDEN", "You have reached the maximum number of machines for your team."),
        Kind.AUTH: (401, "UNAUTHORIZED", "You must be logged in to access this method."),
        Kind.INVALID: (400, "BAD_REQUEST", "Input validation failed"),
        Kind.THROTTLED: (429, "TOO_MANY_REQUESTS", "Too many requests"),
    }
    internal = (fault.status, "INTERNAL_SERVER_ERROR", "An unexpected error occurred")
    return Refused(*table.get(fault.kind, internal), retry_after_s=fault.seconds if fault.kind in table else 0)


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
        """The vendor's StartupScript, which does not show the text."""
        return {
            "id": self.id,
            "name": self.name,
            "description": None,
            "isEnabled": True,
            "isRunOnce": self.is_run_once,
            "assignedMachineIds": self.machine_ids,
            "dtCreated": _time(self.created_at),
            "dtDeleted": None,
        }


@dataclass(slots=True)
class Stillborn:
    """A machine whose making failed after the create call was accepted."""

    machine: Machine
    error: str


@dataclass(slots=True)
class Ways:
    """How the stand-in does what the vendor does not document.

    Attributes:
        refuses_late: a lack of room shows in the event of the create call instead of its answer.
        shows_stillborn: such a machine is shown as provisioning until it is deleted; else it is not found.
        must_be_off: a machine that runs cannot be deleted.
        page: the most items on one page.
        names_next_page: lists with more tell the next page's cursor; else the last item's id is the cursor.
    """

    refuses_late: bool = False
    shows_stillborn: bool = True
    must_be_off: bool = False
    page: int = 120
    names_next_page: bool = True


class PaperspaceCloud:
    """The stand-in as an aiohttp application.

    Args:
        ledger: the machines.
        faults: what goes wrong.
        host: turns machines off.
        api_key: the only key that is let in.
    """

    def __init__(self, ledger: Ledger, faults: FaultEngine, host: Host, api_key: str) -> None:
        self.ledger = ledger
        self.faults = faults
        self.types: dict[str, PaperspaceType] = {kind.label: kind for kind in TYPES}
        self.scripts: dict[str, Script] = {}
        self.ways = Ways()
        self._host = host
        self._stillborn: dict[str, Stillborn] = {}
        self._api_key = api_key
        self._closing = asyncio.Event()

    def app(self) -> web.Application:
        """The application, with all routes under /v1."""
        app = web.Application(middlewares=[self._middleware])
        app.add_routes(
            [
                web.get("/v1/auth/session", self._session),
                web.get("/v1/os-templates", self._templates),
                web.get("/v1/machine-availability", self._availability),
                web.get("/v1/machines", self._list),
                web.post("/v1/machines", self._create),
                web.get("/v1/machines/{id}", self._get),
                web.delete("/v1/machines/{id}", self._delete),
                web.patch("/v1/machines/{id}/stop", self._stop),
                web.get("/v1/machine-events", self._events),
                web.get("/v1/startup-scripts", self._list_scripts),
                web.post("/v1/startup-scripts", self._create_script),
                web.delete("/v1/startup-scripts/{id}", self._delete_script),
            ]
        )
        return app

    def add_admin_routes(self, app: web.Application) -> None:
        """Add what only this cloud has to the stand-ins' admin API."""
        app.add_routes(
            [
                web.put("/clouds/paperspace/ways", self._set_ways),
                web.get("/clouds/paperspace/scripts", self._all_scripts),
            ]
        )

    async def _set_ways(self, request: web.Request) -> web.Response:
        self.ways = replace(self.ways, **await request.json())
        return web.json_response(asdict(self.ways))

    async def _all_scripts(self, request: web.Request) -> web.Response:
        return web.json_response({"scripts": [script.body() for script in self.scripts.values()]})

    def close(self) -> None:
        """Let slow answers go."""
        self._closing.set()

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        struck = self.faults.take(_operation(request))
        _STRUCK.set(struck)
        try:
            if request.headers.get("Authorization") != f"Bearer {self._api_key}":
                raise Refused(401, "UNAUTHORIZED", "You must be logged in to access this method.")
            if struck.before is not None:
                return _spoiled(request, struck.before)
            response = await handler(request)
        except Refused as refused:
            response = web.json_response(refused.body, status=refused.status, headers=refused.headers)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
            response = web.json_response({"message": "Not found", "code": "NOT_FOUND"}, status=404)
        if struck.after is None:
            return response
        if struck.after.kind is not Kind.SLOW:
            return _spoiled(request, struck.after)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), struck.after.seconds)
        return response

    async def _session(self, request: web.Request) -> web.Response:
        team = {"namespace": "sandbox", "isPrivate": False, "maxMachines": 20, "id": "tsandbox", "analyticsId": 1}
        return web.json_response({"user": {"firstName": "S", "lastName": "B", "email": "s@example.org"}, "team": team})

    async def _templates(self, request: web.Request) -> web.Response:
        return self._page(request, TEMPLATES)

    async def _availability(self, request: web.Request) -> web.Response:
        kind, region = self._type_and_region(request.query)
        free = region in kind.regions and self.ledger.has_room(kind.label, region)
        return web.json_response({"available": free})

    def _type_and_region(self, asked: Any) -> tuple[PaperspaceType, str]:
        kind = next((k for k in self.types.values() if k.label.lower() == str(asked.get("machineType")).lower()), None)
        named = str(asked.get("region")).lower()
        region = next((code for code, name in REGIONS.items() if named in (code, name.lower())), None)
        if kind is None or region is None:
            raise Refused(400, "BAD_REQUEST", "Invalid machine type or region")
        return kind, region

    async def _list(self, request: web.Request) -> web.Response:
        machines = [machine for machine in self.ledger.listed() if machine.life is not Life.ENDED]
        if self.ways.shows_stillborn:
            machines += [one.machine for one in self._stillborn.values()]
        looks = _STRUCK.get().looks
        return self._page(request, [self._body(machine, looks) for machine in machines])

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._body(self._known(request.match_info["id"]), _STRUCK.get().looks))

    def _known(self, machine_id: str) -> Machine:
        stillborn = self._stillborn.get(machine_id)
        if stillborn is not None and self.ways.shows_stillborn:
            return stillborn.machine
        machine = self.ledger.find(machine_id)
        if machine is None or machine.life is Life.ENDED:
            raise Refused(404, "NOT_FOUND", "Machine not found")
        return machine

    async def _create(self, request: web.Request) -> web.Response:
        body = await _json(request)
        kind, region = self._type_and_region(body)
        script = self._checked(body, kind)
        struck = _STRUCK.get()
        free = region in kind.regions and self.ledger.has_room(kind.label, region)
        if not free and not self.ways.refuses_late:
            raise Refused(400, "BAD_REQUEST", NO_ROOM)
        made: list[Machine] = []
        for _ in range(2 if struck.fate(Kind.DUPLICATE) else 1):
            birth = Birth(
                id=f"ps{uuid.uuid4().hex[:10]}",
                token=str(body["name"]),
                region=region,
                zone="",
                instance_type=kind.label,
                gpus=kind.gpus,
                gpu_name=kind.gpu_name,
                usd_per_hour=kind.usd_per_hour,
                user_data=script.text if script else "",
            )
            made.append(self.ledger.add(birth, struck) if free else self._bury(birth))
            if script is not None:
                script.machine_ids.append(birth.id)
        first = made[0]
        event = _event(first, "create", "new", first.created_at)
        return web.json_response({"data": self._body(first, struck.looks), "event": event})

    def _bury(self, birth: Birth) -> Machine:
        """A machine that exists in the vendor's books alone: it never boots and costs nothing."""
        books = Ledger(self.ledger.cloud, self._host, self.ledger.now, self.ledger.rules)
        fault = Fault(Kind.NEVER_BOOTS)
        machine = books.add(birth, Struck(fates=(fault,)))
        self._stillborn[machine.id] = Stillborn(machine, NO_ROOM)
        return machine

    def _checked(self, body: dict[str, Any], kind: PaperspaceType) -> Script | None:
        template = next((one for one in TEMPLATES if one["id"] == body.get("templateId")), None)
        if template is None:
            raise Refused(404, "NOT_FOUND", "Template not found")
        if kind.label not in {one["machineTypeLabel"] for one in template["availableMachineTypes"]}:
            raise Refused(400, "BAD_REQUEST", "Template is not compatible with the machine type")
        if not body.get("name") or body.get("diskSize") not in DISKS_GB:
            raise Refused(400, "BAD_REQUEST", "Input validation failed")
        script_id = body.get("startupScriptId")
        if script_id is not None and script_id not in self.scripts:
            raise Refused(404, "NOT_FOUND", "Startup script not found")
        return self.scripts.get(str(script_id))

    async def _delete(self, request: web.Request) -> web.Response:
        machine = self._known(request.match_info["id"])
        if self._stillborn.pop(machine.id, None) is None:
            if machine.life is Life.ENDING:
                raise Refused(412, "PRECONDITION_FAILED", "The machine is already being deactivated")
            if self.ways.must_be_off and not machine.powered_off:
                raise Refused(412, "PRECONDITION_FAILED", "The machine must be off")
            self.ledger.ask_end(machine.id)
        event = _event(machine, "deactivate", "new", self.ledger.now())
        return web.json_response({"data": self._body(machine, frozenset()), "event": event})

    async def _stop(self, request: web.Request) -> web.Response:
        machine = self._known(request.match_info["id"])
        if machine.life is not Life.RUNNING or machine.powered_off:
            raise Refused(412, "PRECONDITION_FAILED", "The machine is not running")
        self._host.destroy(machine.name)
        event = _event(machine, "stop", "new", self.ledger.now())
        return web.json_response({"data": self._body(machine, frozenset()), "event": event})

    async def _events(self, request: web.Request) -> web.Response:
        machine_id = request.query.get("machineId", "")
        stillborn = self._stillborn.get(machine_id)
        if stillborn is not None:
            machine = stillborn.machine
            return self._page(request, [_event(machine, "create", "error", machine.created_at, stillborn.error)])
        found = self.ledger.find(machine_id)
        return self._page(request, _events_of(found) if found else [])

    async def _list_scripts(self, request: web.Request) -> web.Response:
        return self._page(request, [script.body() for script in self.scripts.values()])

    async def _create_script(self, request: web.Request) -> web.Response:
        body = await _json(request)
        if not body.get("name") or not isinstance(body.get("script"), str):
            raise Refused(400, "BAD_REQUEST", "Input validation failed")
        script_id = f"ss{uuid.uuid4().hex[:10]}"
        script = Script(script_id, body["name"], body["script"], body.get("isRunOnce") is True, self.ledger.now())
        self.scripts[script_id] = script
        return web.json_response(script.body())

    async def _delete_script(self, request: web.Request) -> web.Response:
        script = self.scripts.pop(request.match_info["id"], None)
        if script is None:
            raise Refused(404, "NOT_FOUND", "Startup script not found")
        return web.json_response({**script.body(), "dtDeleted": _time(self.ledger.now())})

    def _page(self, request: web.Request, items: Sequence[dict[str, Any]]) -> web.Response:
        try:
            limit = min(int(request.query.get("limit", 120)), self.ways.page)
        except ValueError:
            raise Refused(400, "BAD_REQUEST", "Input validation failed") from None
        after = request.query.get("after")
        ids = [item["id"] for item in items]
        start = 0
        if after is not None:
            cursor = after.removeprefix("after:")
            if cursor not in ids:
                raise Refused(400, "BAD_REQUEST", "Invalid cursor")
            start = ids.index(cursor) + 1
        page = list(items[start : start + limit])
        more = start + limit < len(items)
        body: dict[str, Any] = {"hasMore": more, "items": page}
        if more and self.ways.names_next_page:
            body["nextPage"] = f"after:{page[-1]['id']}"
        return web.json_response(body)

    def _body(self, machine: Machine, looks: frozenset[Kind]) -> dict[str, Any]:
        kind = self.types[machine.instance_type]
        state = "off" if machine.life is Life.RUNNING and machine.powered_off else _STATE[machine.life]
        if Kind.UNKNOWN_STATE in looks:
            state = "hibernating"
        up = machine.life is Life.RUNNING and machine.address and not machine.fate.no_address
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
            "dtCreated": _time(machine.created_at),
            "dtModified": _time(machine.created_at),
            "dtDeleted": None,
            "reservation": None,
        }
        if Kind.UNKNOWN_FIELDS in looks:
            body |= {"novelty": {"depth": 1}, "zz_list": [1, 2]}
        return body


def _events_of(machine: Machine) -> list[dict[str, Any]]:
    failed = machine.end is End.BOOT_FAILED
    state = "in progress" if machine.life is Life.PENDING else "error" if failed else "done"
    error = machine.tags.get("sandbox-failure", "the machine failed to start") if failed else None
    events = [_event(machine, "create", state, machine.created_at, error)]
    if machine.life is Life.ENDING and machine.end_asked_at is not None:
        events.insert(0, _event(machine, "deactivate", "in progress", machine.end_asked_at))
    elif machine.life is Life.ENDED and not failed:
        events.insert(0, _event(machine, "deactivate", "done", machine.ended_at or machine.created_at))
    return events


def _event(machine: Machine, name: str, state: str, at: datetime, error: str | None = None) -> dict[str, Any]:
    over = state in ("done", "error", "cancelled")
    return {
        "id": uuid.uuid5(uuid.NAMESPACE_OID, f"{machine.id} {name}").hex,
        "name": name,
        "state": state,
        "machineId": machine.id,
        "dtCreated": _time(at),
        "dtStarted": None if state == "new" else _time(at),
        "dtFinished": _time(at) if over else None,
        "error": error,
    }


def _time(at: datetime) -> str:
    milliseconds = math.floor(at.microsecond / 1000)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def _operation(request: web.Request) -> str:
    if request.path.startswith("/v1/machines/"):
        return {"GET": "get", "DELETE": "terminate"}.get(request.method, "other")
    return _SLOTS.get((request.method, request.path), "other")


async def _json(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "PARSE_ERROR", "Input is not valid JSON")
    return body


def _spoiled(request: web.Request, fault: Fault) -> web.StreamResponse:
    if fault.kind in CUTS:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()  # to nobody
    if fault.kind in (Kind.HTML, Kind.HTML_AFTER):
        status = 200 if fault.kind in AFTER else 502
        return web.Response(text=HTML, content_type="text/html", status=status)
    refused = _refusal(fault)
    return web.json_response(refused.body, status=refused.status, headers=refused.headers)
