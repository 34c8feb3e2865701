"""A stand-in for Paperspace's API v1, with state, events, startup scripts and faults."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from aiohttp import web

from deploy.sandbox.clouds.host import Host
from deploy.sandbox.clouds.ledger import Ledger, Life, NewMachine, RentedMachine
from deploy.sandbox.clouds.paperspace_bodies import Script, event_body, events_of, machine_body, time_text
from deploy.sandbox.clouds.paperspace_types import DISKS_GB, REGIONS, TEMPLATES, TYPES, PaperspaceType
from deploy.sandbox.clouds.things import Things
from meshd.contract.faults import CallFaults, CloudFault, FaultEngine, FaultKind
from meshd.contract.standin import ErrorResponse, StandIn, json_object

NO_ROOM = (
    "We are currently out of capacity for the selected VM type. Try again in a few minutes, or select a different "
    "instance."
)
_SLOTS = {
    ("GET", "/v1/os-templates"): "offers",
    ("GET", "/v1/machine-availability"): "offers",
    ("POST", "/v1/machines"): "launch",
    ("GET", "/v1/machines"): "list",
    ("GET", "/v1/auth/session"): "check",
    ("GET", "/v1/public-ips"): "billed",
    ("GET", "/v1/startup-scripts"): "scripts",
}


_BAD_KEY = (401, "UNAUTHORIZED", "You must be logged in to access this method.")
_BAD_INPUT = (400, "BAD_REQUEST", "Input validation failed")
_FULL = (400, "BAD_REQUEST", NO_ROOM)
_REFUSALS: dict[FaultKind, tuple[int, str, str]] = {
    FaultKind.NO_CAPACITY: _FULL,
    FaultKind.QUOTA: (403, "FORBIDDEN", "You have reached the maximum number of machines for your team."),
    FaultKind.AUTH: _BAD_KEY,
    FaultKind.EXPIRED: _BAD_KEY,
    FaultKind.INVALID: _BAD_INPUT,
    FaultKind.THROTTLED: (429, "TOO_MANY_REQUESTS", "Too many requests"),
}


def _no(status: int, code: str, message: str) -> ErrorResponse:
    return ErrorResponse(status, {"code": code, "message": message})


@dataclass(slots=True)
class FailedMachine:
    """A machine that could not be made after the create call was accepted."""

    machine: RentedMachine
    error: str


@dataclass(slots=True)
class VendorOptions:
    """Behaviour that the vendor does not document.

    Attributes:
        refuses_late: a lack of capacity shows in the create event instead of the answer.
        shows_failed: a machine that could not be made is shown as provisioning until it is deleted; if not, it is not
            found.
        must_be_off: a running machine cannot be deleted.
        page: the maximum number of items per page.
        names_next_page: a page has the next page's cursor; if not, the last item's id is the cursor.
    """

    refuses_late: bool = False
    shows_failed: bool = True
    must_be_off: bool = False
    page: int = 120
    names_next_page: bool = True


class PaperspaceCloud(StandIn):
    """The stand-in, with all routes under /v1.

    Args:
        ledger: the machines.
        faults: decides which faults hit a call.
        host: turns machines off.
        api_key: the only valid key.
    """

    def __init__(self, ledger: Ledger, faults: FaultEngine, host: Host, api_key: str) -> None:
        super().__init__(faults)
        self.ledger = ledger
        self.types: dict[str, PaperspaceType] = {kind.label: kind for kind in TYPES}
        self.scripts: dict[str, Script] = {}
        self.options = VendorOptions()
        self.things = Things(ledger.now)
        self._host = host
        self._failed: dict[str, FailedMachine] = {}
        self._api_key = api_key

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The parts of the API that the adapter uses."""
        return [
            web.get("/v1/auth/session", self._session),
            web.get("/v1/os-templates", self._templates),
            web.get("/v1/machine-availability", self._availability),
            web.get("/v1/machines", self._list),
            web.post("/v1/machines", self._create),
            web.get("/v1/machines/{id}", self._get),
            web.delete("/v1/machines/{id}", self._delete),
            web.patch("/v1/machines/{id}/stop", self._stop),
            web.get("/v1/machine-events", self._events),
            web.get("/v1/public-ips", self._public_ips),
            web.get("/v1/startup-scripts", self._list_scripts),
            web.post("/v1/startup-scripts", self._create_script),
            web.delete("/v1/startup-scripts/{id}", self._delete_script),
        ]

    def operation_of(self, request: web.Request) -> str:
        """The operation, from method and path."""
        if request.path.startswith("/v1/machines/"):
            return {"GET": "get", "DELETE": "terminate"}.get(request.method, "other")
        return _SLOTS.get((request.method, request.path), "other")

    def refusal(self, fault: CloudFault) -> ErrorResponse:
        """Paperspace's code and text."""
        internal = (fault.status, "INTERNAL_SERVER_ERROR", "An unexpected error occurred")
        return _no(*_REFUSALS.get(fault.kind, internal))

    def no_such_path(self) -> ErrorResponse:
        """Paperspace's 404, which it also gives for a wrong method."""
        return _no(404, "NOT_FOUND", "Not found")

    def admit(self, request: web.Request, operation: str) -> Mapping[str, str]:
        """Check the key."""
        if request.headers.get("Authorization") != f"Bearer {self._api_key}":
            raise _no(*_BAD_KEY)
        return {}

    def add_admin_routes(self, app: web.Application) -> None:
        """Add this cloud's routes to the admin API."""
        app.add_routes(
            [
                web.put("/clouds/paperspace/options", self._set_options),
                web.get("/clouds/paperspace/scripts", self._all_scripts),
            ]
        )

    async def _set_options(self, request: web.Request) -> web.Response:
        self.options = replace(self.options, **await request.json())
        return web.json_response(asdict(self.options))

    async def _all_scripts(self, request: web.Request) -> web.Response:
        return web.json_response({"scripts": [script.body() for script in self.scripts.values()]})

    async def _session(self, request: web.Request) -> web.Response:
        team = {"namespace": "sandbox", "isPrivate": False, "maxMachines": 20, "id": "tsandbox", "analyticsId": 1}
        return web.json_response({"user": {"firstName": "S", "lastName": "B", "email": "s@example.org"}, "team": team})

    async def _templates(self, request: web.Request) -> web.Response:
        return self._page(request, TEMPLATES)

    async def _availability(self, request: web.Request) -> web.Response:
        kind, region = self._type_and_region(request.query)
        free = region in kind.regions and self.ledger.has_capacity(kind.label, region)
        return web.json_response({"available": free})

    def _type_and_region(self, asked: Any) -> tuple[PaperspaceType, str]:
        kind = next((k for k in self.types.values() if k.label.lower() == str(asked.get("machineType")).lower()), None)
        named = str(asked.get("region")).lower()
        region = next((code for code, name in REGIONS.items() if named in (code, name.lower())), None)
        if kind is None or region is None:
            raise _no(400, "BAD_REQUEST", "Invalid machine type or region")
        return kind, region

    async def _list(self, request: web.Request) -> web.Response:
        machines = [machine for machine in self.ledger.listed() if machine.life is not Life.ENDED]
        if self.options.shows_failed:
            machines += [one.machine for one in self._failed.values()]
        return self._page(request, [self._body(machine) for machine in machines])

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._body(self._known(request.match_info["id"])))

    def _known(self, machine_id: str) -> RentedMachine:
        failed = self._failed.get(machine_id)
        if failed is not None and self.options.shows_failed:
            return failed.machine
        machine = self.ledger.find(machine_id)
        if machine is None or machine.life is Life.ENDED:
            raise _no(404, "NOT_FOUND", "Machine not found")
        return machine

    async def _create(self, request: web.Request) -> web.Response:
        body = await json_object(request, _no(400, "PARSE_ERROR", "Input is not valid JSON"))
        kind, region = self._type_and_region(body)
        script = self._checked(body, kind)
        call_faults = self.call_faults
        free = region in kind.regions and self.ledger.has_capacity(kind.label, region)
        if not free and not self.options.refuses_late:
            raise _no(*_FULL)
        made: list[RentedMachine] = []
        for _ in range(2 if call_faults.has(FaultKind.DUPLICATE) else 1):
            new = NewMachine(
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
            made.append(self.ledger.add(new, call_faults) if free else self._add_dead(new))
            if script is not None:
                script.machine_ids.append(new.id)
        first = made[0]
        event = event_body(first, "create", "new", first.created_at)
        return web.json_response({"data": self._body(first), "event": event})

    def _add_dead(self, new: NewMachine) -> RentedMachine:
        """A machine that exists only in the vendor's records: it never boots and costs nothing."""
        books = Ledger(self.ledger.cloud, self._host, self.ledger.now, self.ledger.rules)
        fault = CloudFault(FaultKind.NEVER_BOOTS)
        machine = books.add(new, CallFaults(lifecycle=(fault,)))
        self._failed[machine.id] = FailedMachine(machine, NO_ROOM)
        return machine

    def _checked(self, body: dict[str, Any], kind: PaperspaceType) -> Script | None:
        template = next((one for one in TEMPLATES if one["id"] == body.get("templateId")), None)
        if template is None:
            raise _no(404, "NOT_FOUND", "Template not found")
        if kind.label not in {one["machineTypeLabel"] for one in template["availableMachineTypes"]}:
            raise _no(400, "BAD_REQUEST", "Template is not compatible with the machine type")
        if not body.get("name") or body.get("diskSize") not in DISKS_GB:
            raise _no(*_BAD_INPUT)
        script_id = body.get("startupScriptId")
        if script_id is not None and script_id not in self.scripts:
            raise _no(404, "NOT_FOUND", "Startup script not found")
        return self.scripts.get(str(script_id))

    async def _delete(self, request: web.Request) -> web.Response:
        machine = self._known(request.match_info["id"])
        if self._failed.pop(machine.id, None) is None:
            if machine.life is Life.ENDING:
                raise _no(412, "PRECONDITION_FAILED", "The machine is already being deactivated")
            if self.options.must_be_off and not machine.powered_off:
                raise _no(412, "PRECONDITION_FAILED", "The machine must be off")
            self.ledger.ask_end(machine.id)
        event = event_body(machine, "deactivate", "new", self.ledger.now())
        return web.json_response({"data": self._body(machine), "event": event})

    async def _stop(self, request: web.Request) -> web.Response:
        machine = self._known(request.match_info["id"])
        if machine.life is not Life.RUNNING or machine.powered_off:
            raise _no(412, "PRECONDITION_FAILED", "The machine is not running")
        self._host.destroy(machine.name)
        event = event_body(machine, "stop", "new", self.ledger.now())
        return web.json_response({"data": self._body(machine), "event": event})

    async def _events(self, request: web.Request) -> web.Response:
        machine_id = request.query.get("machineId", "")
        failed = self._failed.get(machine_id)
        if failed is not None:
            machine = failed.machine
            return self._page(request, [event_body(machine, "create", "error", machine.created_at, failed.error)])
        found = self.ledger.find(machine_id)
        return self._page(request, events_of(found) if found else [])

    async def _public_ips(self, request: web.Request) -> web.Response:
        rows = [
            {
                "ip": one.id, "region": one.region, "assignedToMachineId": one.attached_to or None,
                "dtCreated": time_text(one.created_at),
            }
            for one in self.things.of("address")
        ]  # fmt: skip
        return self._page(request, rows, "ip")

    async def _list_scripts(self, request: web.Request) -> web.Response:
        return self._page(request, [script.body() for script in self.scripts.values()])

    async def _create_script(self, request: web.Request) -> web.Response:
        body = await json_object(request, _no(400, "PARSE_ERROR", "Input is not valid JSON"))
        if not body.get("name") or not isinstance(body.get("script"), str):
            raise _no(*_BAD_INPUT)
        script_id = f"ss{uuid.uuid4().hex[:10]}"
        script = Script(script_id, body["name"], body["script"], body.get("isRunOnce") is True, self.ledger.now())
        self.scripts[script_id] = script
        return web.json_response(script.body())

    async def _delete_script(self, request: web.Request) -> web.Response:
        script = self.scripts.pop(request.match_info["id"], None)
        if script is None:
            raise _no(404, "NOT_FOUND", "Startup script not found")
        return web.json_response({**script.body(), "dtDeleted": time_text(self.ledger.now())})

    def _page(self, request: web.Request, items: Sequence[dict[str, Any]], key: str = "id") -> web.Response:
        after = request.query.get("after")
        try:
            limit = self.page_of(min(int(request.query.get("limit", 120)), self.options.page), after)
        except ValueError:
            raise _no(*_BAD_INPUT) from None
        ids = [item[key] for item in items]
        start = 0
        if after is not None:
            cursor = after.removeprefix("after:")
            if cursor not in ids:
                raise _no(400, "BAD_REQUEST", "Invalid cursor")
            start = ids.index(cursor) + 1
        page = list(items[start : start + limit])
        more = start + limit < len(items)
        body: dict[str, Any] = {"hasMore": more, "items": page}
        if more and self.options.names_next_page:
            body["nextPage"] = f"after:{page[-1][key]}"
        return web.json_response(body)

    def _body(self, machine: RentedMachine) -> dict[str, Any]:
        return machine_body(machine, self.types[machine.instance_type], self.call_faults.content)
