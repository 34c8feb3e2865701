"""A stand-in for Lambda Cloud's API 1.10, with state, rate limits and faults."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from deploy.sandbox.clouds.lambda_types import REGIONS, TYPES, LambdaType
from deploy.sandbox.clouds.ledger import Ledger, Life, NewMachine, RentedMachine, shown_life
from deploy.sandbox.clouds.things import Things
from meshd.contract.faults import CloudFault, FaultEngine, FaultKind
from meshd.contract.standin import ErrorResponse, StandIn, json_object

_HOSTNAME = re.compile(r"[a-z0-9][0-9a-z-]{0,62}")
_TAG_KEY = re.compile(r"[a-z][a-z0-9-:]{1,54}")
_STATUS = {
    Life.PENDING: "booting",
    Life.RUNNING: "active",
    Life.ENDING: "terminating",
    Life.ENDED: "terminated",
}
_SLOTS = {
    ("GET", "/instance-types"): "offers",
    ("POST", "/instance-operations/launch"): "launch",
    ("POST", "/instance-operations/terminate"): "terminate",
    ("GET", "/instances"): "list",
    ("GET", "/file-systems"): "billed",
}


#: Status, code, message and suggestion.
_NO_ROOM = (
    400,
    "instance-operations/launch/insufficient-capacity",
    "Not enough capacity to fulfill launch request.",
    "Choose another region or instance type.",
)
_BAD_KEY = (401, "global/invalid-api-key", "API key was invalid, expired, or deleted.", "Check your API key.")
_TOO_MANY = (429, "global/rate-limited", "Too many requests.")
_BAD_DATA = (400, "global/invalid-parameters", "Invalid request data.")
_REFUSALS: dict[FaultKind, tuple[int, str, str] | tuple[int, str, str, str]] = {
    FaultKind.NO_CAPACITY: _NO_ROOM,
    FaultKind.QUOTA: (400, "global/quota-exceeded", "Quota exceeded.", "Contact Support to increase your quota."),
    FaultKind.AUTH: _BAD_KEY,
    FaultKind.EXPIRED: _BAD_KEY,
    FaultKind.INVALID: _BAD_DATA,
    FaultKind.THROTTLED: _TOO_MANY,
}


def _no(status: int, code: str, message: str, suggestion: str = "") -> ErrorResponse:
    error = {"code": code, "message": message, **({"suggestion": suggestion} if suggestion else {})}
    return ErrorResponse(status, {"error": error})


@dataclass(slots=True)
class RateLimits:
    """Lambda's limits: one call per second, one launch per 12 s. 0 means no limit."""

    call_spacing_s: float = 1.0
    launch_spacing_s: float = 12.0


class LambdaCloud(StandIn):
    """The stand-in, with all routes under /api/v1.

    Args:
        ledger: the machines.
        faults: decides which faults hit a call.
        api_key: the only valid key.
        limits: tests may change them.
    """

    def __init__(self, ledger: Ledger, faults: FaultEngine, api_key: str, limits: RateLimits) -> None:
        super().__init__(faults)
        self.ledger = ledger
        self.limits = limits
        self.types: dict[str, LambdaType] = {kind.name: kind for kind in TYPES}
        self.ssh_keys = ["meshd"]
        self.things = Things(ledger.now)
        self._api_key = api_key
        self._last: dict[str, float] = {}

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The parts of the API that the adapter uses."""
        return [
            web.get("/api/v1/instance-types", self._instance_types),
            web.get("/api/v1/regions", self._regions),
            web.get("/api/v1/ssh-keys", self._ssh_keys),
            web.get("/api/v1/file-systems", self._file_systems),
            web.get("/api/v1/instances", self._list),
            web.get("/api/v1/instances/{id}", self._get),
            web.post("/api/v1/instance-operations/launch", self._launch),
            web.post("/api/v1/instance-operations/terminate", self._terminate),
        ]

    def operation_of(self, request: web.Request) -> str:
        """The operation, from method and path."""
        path = request.path.removeprefix("/api/v1")
        if request.method == "GET" and path.startswith("/instances/"):
            return "get"
        return _SLOTS.get((request.method, path), "other")

    def refusal(self, fault: CloudFault) -> ErrorResponse:
        """Lambda's code and text."""
        internal = (fault.status, "global/internal-error", "An internal server error occurred.", "Try again later.")
        return _no(*_REFUSALS.get(fault.kind, internal))

    def no_such_path(self) -> ErrorResponse:
        """Lambda's 404."""
        return _no(404, "global/not-found", "The requested resource was not found.")

    def admit(self, request: web.Request, operation: str) -> Mapping[str, str]:
        """Check the key and the rate limits."""
        if request.headers.get("Authorization") != f"Bearer {self._api_key}":
            raise _no(*_BAD_KEY)
        self._space("call", self.limits.call_spacing_s)
        if operation == "launch":
            self._space("launch", self.limits.launch_spacing_s)
        return {}

    def _space(self, name: str, spacing_s: float) -> None:
        now_s = self.ledger.now().timestamp()
        last_s = self._last.get(name)
        if spacing_s and last_s is not None and now_s - last_s < spacing_s:
            raise _no(*_TOO_MANY)
        self._last[name] = now_s

    async def _instance_types(self, request: web.Request) -> web.Response:
        items = {
            kind.name: {
                "instance_type": kind.body(),
                "regions_with_capacity_available": [
                    _region(region) for region in kind.regions if self.ledger.has_capacity(kind.name, region)
                ],
            }
            for kind in self.types.values()
        }
        return _data(items)

    async def _regions(self, request: web.Request) -> web.Response:
        return _data([_region(name) for name in REGIONS])

    async def _ssh_keys(self, request: web.Request) -> web.Response:
        key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA sandbox"
        rows = [{"id": uuid.uuid5(uuid.NAMESPACE_OID, n).hex, "name": n, "public_key": key} for n in self.ssh_keys]
        return _data(rows)

    async def _file_systems(self, request: web.Request) -> web.Response:
        rows = [
            {
                "id": one.id, "name": one.name, "mount_point": f"/lambda/nfs/{one.name}",
                "created": one.created_at.isoformat(), "is_in_use": False, "region": _region(one.region),
                "created_by": {"id": "u1", "email": "s@example.org", "status": "active"}, "bytes_used": 0,
            }
            for one in self.things.of("volume")
        ]  # fmt: skip
        return _data(rows)

    async def _list(self, request: web.Request) -> web.Response:
        content_faults = self.call_faults.content
        return _data([self._body(machine, content_faults) for machine in self.ledger.listed()])

    async def _get(self, request: web.Request) -> web.Response:
        machine = self._known(request.match_info["id"])
        return _data(self._body(machine, self.call_faults.content))

    def _known(self, machine_id: str) -> RentedMachine:
        machine = self.ledger.find(machine_id)
        if machine is None:
            raise _no(404, "global/object-does-not-exist", "Specified instance does not exist.")
        return machine

    async def _launch(self, request: web.Request) -> web.Response:
        body = await json_object(request, _no(*_BAD_DATA))
        kind, region = self._checked(body)
        call_faults = self.call_faults
        copies = 2 if call_faults.has(FaultKind.DUPLICATE) else 1
        ids = [uuid.uuid4().hex for _ in range(copies)]
        for machine_id in ids:
            self.ledger.add(
                NewMachine(
                    id=machine_id,
                    token=str(body.get("name", "")),
                    region=region,
                    zone="",
                    instance_type=kind.name,
                    gpus=kind.gpus,
                    gpu_name=kind.gpu_name,
                    usd_per_hour=kind.cents_per_hour / 100,
                    user_data=str(body.get("user_data", "")),
                    tags={tag["key"]: tag["value"] for tag in body.get("tags", [])},
                ),
                call_faults,
            )
        return _data({"instance_ids": ids[:1]})

    def _checked(self, body: dict[str, Any]) -> tuple[LambdaType, str]:
        kind = self.types.get(str(body.get("instance_type_name")))
        region = str(body.get("region_name"))
        keys = body.get("ssh_key_names")
        if kind is None or region not in REGIONS:
            raise _no(404, "global/object-does-not-exist", "No such instance type or region.", "Check the names.")
        problem = _problem(body)
        if problem:
            raise _no(400, "global/invalid-parameters", problem)
        if not isinstance(keys, list) or len(keys) != 1:
            raise _no(400, "global/invalid-parameters", "Exactly one SSH key must be specified.")
        if keys[0] not in self.ssh_keys:
            raise _no(400, "global/object-does-not-exist", "SSH key does not exist.", "Add the key first.")
        if region not in kind.regions or not self.ledger.has_capacity(kind.name, region):
            raise _no(*_NO_ROOM)
        return kind, region

    async def _terminate(self, request: web.Request) -> web.Response:
        body = await json_object(request, _no(*_BAD_DATA))
        machines = [self._known(str(machine_id)) for machine_id in body.get("instance_ids", [])]
        if any(machine.life in (Life.ENDING, Life.ENDED) for machine in machines):
            raise _no(400, "global/unknown", "An unknown error occurred.")
        for machine in machines:
            self.ledger.ask_end(machine.id)
        return _data({"terminated_instances": [self._body(m, frozenset(), "terminating") for m in machines]})

    def _body(self, machine: RentedMachine, content_faults: frozenset[FaultKind], status: str = "") -> dict[str, Any]:
        life = shown_life(machine, content_faults)
        status = status or _STATUS[life]
        if life is Life.RUNNING and machine.powered_off:
            status = "unhealthy"
        if FaultKind.UNKNOWN_STATE in content_faults:
            status = "hibernating"
        body: dict[str, Any] = {
            "id": machine.id,
            "name": machine.token,
            "status": status,
            "ssh_key_names": self.ssh_keys[:1],
            "file_system_names": [],
            "region": _region(machine.region),
            "instance_type": self.types[machine.instance_type].body(),
            "hostname": machine.token,
            "actions": _actions(life),
            "tags": [{"key": key, "value": value} for key, value in machine.tags.items()],
        }
        if life is Life.RUNNING and machine.address and not machine.faults.no_address:
            body |= {"ip": machine.address, "private_ip": machine.address}
        if FaultKind.UNKNOWN_FIELDS in content_faults:
            body |= {"novelty": {"depth": 1}, "zz_list": [1, 2]}
        return body


def _actions(life: Life) -> dict[str, Any]:
    ending = life in (Life.ENDING, Life.ENDED)
    no: dict[str, Any] = {"available": False, "reason_code": "vm-has-not-launched", "reason_description": "Booting."}
    if ending:
        no = {"available": False, "reason_code": "vm-is-terminating", "reason_description": "Instance is terminating."}
    others = {"available": True} if life is Life.RUNNING else no
    actions = dict.fromkeys(("migrate", "rebuild", "restart", "cold_reboot"), others)
    return {**actions, "terminate": no if ending else {"available": True}}


def _problem(body: dict[str, Any]) -> str:
    if "quantity" in body and body["quantity"] != 1:
        return "Requested too many instances."
    if "hostname" in body and not _HOSTNAME.fullmatch(str(body["hostname"])):
        return "hostname is invalid"
    if len(str(body.get("name", ""))) > 64:
        return "name is too long"
    if len(str(body.get("user_data", "")).encode()) > 1_000_000:
        return "user_data exceeds 1MB"
    tags = body.get("tags", [])
    if any(not _TAG_KEY.fullmatch(str(tag.get("key"))) or len(str(tag.get("value"))) > 128 for tag in tags):
        return "a tag is invalid"
    return ""


def _region(name: str) -> dict[str, str]:
    return {"name": name, "description": REGIONS.get(name, name)}


def _data(data: Any) -> web.Response:
    return web.json_response({"data": data})
