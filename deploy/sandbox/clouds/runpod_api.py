"""A stand-in for RunPod's REST API 2.0 and the part of its GraphQL API for spot pods, with rate limits and faults."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from deploy.sandbox.clouds.ledger import End, Ledger, Life, NewMachine, RentedMachine
from deploy.sandbox.clouds.runpod_bodies import ACTIONS, pod_body, problems_of, status_of, tags_of, type_name
from deploy.sandbox.clouds.runpod_graphql import (
    PATH,
    PlainErrorResponse,
    Root,
    graphql_error,
    invalid_query,
    operation_of,
    rest_body,
    run,
)
from deploy.sandbox.clouds.runpod_pods import image_kind, pod_of
from deploy.sandbox.clouds.runpod_types import CPUS, DATA_CENTERS, GPUS, CpuFlavour, GpuType
from deploy.sandbox.clouds.things import Things
from meshd.contract.faults import CloudFault, FaultEngine, FaultKind
from meshd.contract.standin import ErrorResponse, StandIn, json_object

TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    410: "Gone",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
}
NO_ROOM = "There are no longer any instances available with the requested specifications. Please refresh and try again."
#: The lowest bid, as a share of the on-demand price.
BID_SHARE = 0.5
_BAD_TOKEN = (401, "invalid bearer token")
_TOO_MANY = (429, "rate limit exceeded for the minute window")
_REFUSALS: dict[FaultKind, tuple[int, str]] = {
    FaultKind.NO_CAPACITY: (400, NO_ROOM),
    FaultKind.QUOTA: (403, "Your account cannot access the requested pool."),
    FaultKind.AUTH: _BAD_TOKEN,
    FaultKind.EXPIRED: _BAD_TOKEN,
    FaultKind.INVALID: (422, "Request validation failed."),
    FaultKind.THROTTLED: _TOO_MANY,
}


def _no(
    status: int, detail: str, errors: list[str] | None = None, headers: Mapping[str, str] | None = None
) -> ErrorResponse:
    """A problem document."""
    body: dict[str, Any] = {
        "title": TITLES.get(status, "Internal Server Error"),
        "status": status,
        "detail": detail,
        **({"errors": errors} if errors else {}),
    }
    return ErrorResponse(status, body, headers, "application/problem+json")


class RunpodCloud(StandIn):
    """The stand-in, with all routes under /v2.

    Args:
        ledger: the machines.
        faults: decides which faults hit a call.
        api_key: the only valid key.
        per_minute: calls per minute; 0 for no limit. Tests may change it.
    """

    def __init__(self, ledger: Ledger, faults: FaultEngine, api_key: str, per_minute: int = 60) -> None:
        super().__init__(faults)
        self.ledger = ledger
        self.per_minute = per_minute
        self.levels: dict[str, str] = {}
        self.gpus: dict[str, GpuType] = {gpu.id: gpu for gpu in GPUS}
        self.cpus: dict[str, CpuFlavour] = {cpu.id: cpu for cpu in CPUS}
        self._api_key = api_key
        self.things = Things(ledger.now)
        self._asked: dict[str, dict[str, Any]] = {}
        self._window = (0, 0)
        self._pod_keys: dict[str, str] = {}
        """Keys in the environment of pods, each with the id of the one pod that it is good for."""

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The parts of the API that the adapter uses."""
        return [
            web.get("/v2/catalog/gpus", self._gpus),
            web.get("/v2/catalog/cpus", self._cpus),
            web.get("/v2/network-volumes", self._network_volumes),
            web.get("/v2/pods", self._list),
            web.post("/v2/pods", self._create),
            web.get("/v2/pods/{id}", self._get),
            web.delete("/v2/pods/{id}", self._delete),
            web.post("/v2/pods/{id}/action", self._act),
            web.post(PATH, self._graphql),
        ]

    def operation_of(self, request: web.Request) -> str:
        """The operation, from method and path."""
        path = request.path.removeprefix("/v2")
        if path == "/pods":
            return {"GET": "list", "POST": "launch"}.get(request.method, "other")
        if path.startswith("/pods/"):
            return {"GET": "get", "DELETE": "terminate"}.get(request.method, "other")
        if path == "/network-volumes":
            return "billed"
        return "offers" if path.startswith("/catalog/") else "other"

    async def operation_in(self, request: web.Request) -> str:
        """The operation; for GraphQL, which has one path, from the query."""
        if request.path != PATH:
            return self.operation_of(request)
        return operation_of((await request.read()).decode("utf-8", "replace"))

    def refusal_to(self, request: web.Request, fault: CloudFault) -> ErrorResponse:
        """The answer of GraphQL: lack of capacity as an error with status 200, too many calls as plain text."""
        if request.path == PATH and fault.kind is FaultKind.NO_CAPACITY:
            return graphql_error(NO_ROOM)
        if request.path == PATH and fault.kind is FaultKind.INVALID:
            return invalid_query('Field "bogus" is not defined by type "PodRentInterruptableInput".')
        if request.path == PATH and fault.kind is FaultKind.THROTTLED:
            return PlainErrorResponse(429, "Too Many Requests")
        return self.refusal(fault)

    def refusal(self, fault: CloudFault) -> ErrorResponse:
        """A problem document of RunPod."""
        status, detail = _REFUSALS.get(fault.kind, (fault.status, "an internal error occurred"))
        errors = ["$: additional properties 'bogus' not allowed"] if fault.kind is FaultKind.INVALID else None
        return _no(status, detail, errors)

    def permissions_of(self, request: web.Request) -> Iterable[str]:
        """The permission that a call needs. RunPod has no names for permissions, so it is the call itself."""
        path = PATH if request.path == PATH else f"/v2/{request.path.split('/')[2]}"
        return (f"{request.method} {path}",)

    def denial(self, permission: str) -> ErrorResponse:
        """RunPod's 403."""
        return _no(403, "the API key does not have access to this resource")

    def no_such_path(self) -> ErrorResponse:
        """RunPod's 404."""
        return _no(404, "resource not found")

    def admit(self, request: web.Request, operation: str) -> Mapping[str, str]:
        """Check User-Agent, key and rate limit; returns the rate limit headers."""
        agent = request.headers.get("User-Agent", "")
        if not agent or agent.startswith("Python-urllib"):
            raise web.HTTPForbidden(text="error code: 1010")  # the gateway's answer, in plain text
        if "Authorization" not in request.headers:
            raise _no(401, "missing bearer token")
        key = request.headers["Authorization"].removeprefix("Bearer ")
        own = self._pod_keys.get(key)
        if own is not None and not f"{request.path}/".startswith(f"/v2/pods/{own}/"):
            raise self.denial("")
        if own is None and key != self._api_key:
            raise _no(*_BAD_TOKEN)
        return {} if request.path == PATH else self._count()

    def add_admin_routes(self, app: web.Application) -> None:
        """Add this cloud's routes to the admin API: prices, stock and rate limit."""
        app.add_routes(
            [
                web.put("/clouds/runpod/gpus", self._set_price),
                web.put("/clouds/runpod/stock", self._set_stock),
                web.put("/clouds/runpod/limits", self._set_limits),
            ]
        )

    async def _set_price(self, request: web.Request) -> web.Response:
        body = await request.json()
        gpu = self.gpus[body["id"]]
        prices = {tier: float(body.get(tier, usd)) for tier, usd in gpu.usd_per_hour.items()}
        self.gpus[gpu.id] = replace(gpu, usd_per_hour=prices)
        return web.json_response(prices)

    async def _set_stock(self, request: web.Request) -> web.Response:
        body = await request.json()
        place, level = str(body["data_center"]), str(body["availability"])
        if place not in DATA_CENTERS or level not in ("NONE", "LOW", "MEDIUM", "HIGH"):
            raise ValueError(f"data centres are {', '.join(DATA_CENTERS)}; availability is NONE, LOW, MEDIUM or HIGH")
        self.levels[place] = level
        return web.json_response(self.levels)

    async def _set_limits(self, request: web.Request) -> web.Response:
        self.per_minute = int((await request.json())["per_minute"])
        return web.json_response({"per_minute": self.per_minute})

    def _count(self) -> dict[str, str]:
        """Count one call; returns the rate limit headers."""
        now_s = int(self.ledger.now().timestamp())
        minute, used = self._window
        used = used + 1 if minute == now_s // 60 else 1
        self._window = (now_s // 60, used)
        if not self.per_minute:
            return {}
        left_s = 60 - now_s % 60
        left = max(0, self.per_minute - used)
        headers = {
            "RateLimit": f'"minute";r={left};t={left_s}',
            "RateLimit-Policy": f'"minute";q={self.per_minute};w=60',
        }
        if used > self.per_minute:
            raise _no(*_TOO_MANY, headers=headers).after(left_s)
        return headers

    async def _gpus(self, request: web.Request) -> web.Response:
        count, cloud = int(request.query.get("count", "1")), request.query.get("cloud", "SECURE").lower()
        countries = set(filter(None, request.query.get("countryCodes", "").split(",")))
        stocked = _wants_stock(request)
        rows = []
        for gpu in self.gpus.values():
            name = type_name(gpu.id, count, community=cloud == "community")
            places = [place for place in gpu.data_centers if not countries or DATA_CENTERS[place][1] in countries]
            fits = 0 < count <= gpu.max_count.get(cloud, 0)
            if places:
                rows.append(gpu.body() | (self._stock(name, places if fits else []) if stocked else {}))
        return web.json_response({"gpus": rows})

    async def _cpus(self, request: web.Request) -> web.Response:
        count, stocked = int(request.query.get("vcpuCount", "2")), _wants_stock(request)
        if count < 2 or count & (count - 1):
            raise _no(400, "vcpuCount must be a power of two")
        rows = [
            cpu.body() | (self._stock(type_name(cpu.id, count, cpu=True), cpu.data_centers) if stocked else {})
            for cpu in self.cpus.values()
        ]
        return web.json_response({"cpus": rows})

    def _stock(self, name: str, places: list[str] | tuple[str, ...]) -> dict[str, Any]:
        levels = {
            place: self.levels.get(place, "HIGH") if self.ledger.has_capacity(name, place) else "NONE"
            for place in places
        }
        best = next((level for level in ("HIGH", "MEDIUM", "LOW") if level in levels.values()), "NONE")
        if best == "NONE":
            return {"availability": "NONE"}
        rows = [{"id": p, "name": DATA_CENTERS[p][0], "availability": level} for p, level in levels.items()]
        return {"availability": best, "dataCenters": rows}

    async def _network_volumes(self, request: web.Request) -> web.Response:
        rows = [
            {"id": o.id, "name": o.name, "size": o.size_gib, "dataCenter": o.region, "type": "STANDARD"}
            for o in self.things.of("volume")
        ]
        return web.json_response({"networkVolumes": rows})

    async def _list(self, request: web.Request) -> web.Response:
        content_faults = self.call_faults.content
        pods = [
            self._body(machine, content_faults) for machine in self.ledger.listed() if machine.life is not Life.ENDED
        ]
        return web.json_response({"pods": pods})

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._body(self._known(request.match_info["id"]), self.call_faults.content))

    def _known(self, pod_id: str) -> RentedMachine:
        machine = self.ledger.find(pod_id)
        if machine is None or machine.end is End.ASKED:
            raise _no(404, "pod not found")
        return machine

    async def _create(self, request: web.Request) -> web.Response:
        body = await json_object(request, _no(400, "request could not be processed"))
        return web.json_response(self._body(self._add(body), self.call_faults.content), status=201)

    def _add(self, body: dict[str, Any], bid_per_gpu: float | None = None) -> RentedMachine:
        copies = 2 if self.call_faults.has(FaultKind.DUPLICATE) else 1
        machines = []
        for new in [self._new_machine(body) for _ in range(copies)]:
            self._asked[new.id] = body
            if bid_per_gpu is not None:
                new = replace(new, spot=True, usd_per_hour=round(bid_per_gpu * new.gpus, 6))
            machines.append(self.ledger.add(new, self.call_faults))
        return machines[0]

    async def _graphql(self, request: web.Request) -> web.Response:
        body = await json_object(request, _no(400, "request could not be processed"))
        answer = run(str(body.get("query", "")), Root(self))
        return web.json_response(answer, status=200 if "data" in answer else 400)

    def rent_spot(self, asked: Mapping[str, Any]) -> RentedMachine:
        """Create the pod of a GraphQL mutation.

        Raises:
            ErrorResponse: a GraphQL error.
        """
        body = rest_body(asked)
        tier = str(body["cloud"]).lower()
        gpu = self.gpus.get(str(body["gpu"]["id"]))
        try:
            if gpu is None or asked["bidPerGpu"] < self.lowest_bid(gpu, tier):
                raise _no(400, NO_ROOM)
            return self._add(body, asked["bidPerGpu"])
        except ErrorResponse as refused:
            raise graphql_error(str(refused.body["detail"])) from refused

    def lowest_bid(self, gpu: GpuType, tier: str) -> float:
        """USD per GPU and hour."""
        return round(gpu.usd_per_hour.get(tier, 0) * BID_SHARE, 4)

    def lowest_price(self, gpu: GpuType, asked: Mapping[str, Any]) -> dict[str, Any]:
        """GraphQL's LowestPrice; empty without free capacity."""
        tier, count = "secure" if asked.get("secureCloud", True) else "community", int(asked["gpuCount"])
        places = [place for place in gpu.data_centers if asked.get("dataCenterId") in (None, place)]
        name = type_name(gpu.id, count, community=tier == "community")
        free = count <= gpu.max_count.get(tier, 0) and any(self.ledger.has_capacity(name, place) for place in places)
        if not free:
            return {"minimumBidPrice": None, "uninterruptablePrice": None, "stockStatus": None}
        usd = gpu.usd_per_hour[tier]
        return {"minimumBidPrice": self.lowest_bid(gpu, tier), "uninterruptablePrice": usd, "stockStatus": "High"}

    def _new_machine(self, body: dict[str, Any]) -> NewMachine:
        problems = problems_of(body)
        if problems:
            raise _no(422, "Request validation failed.", problems)
        if ("gpu" in body) == ("cpu" in body):
            raise _no(400, "exactly one of gpu and cpu must be set")
        name, gpus, usd, places = self._priced(body)
        wanted = body.get("dataCenterIds") or places
        place = next((p for p in wanted if p in places and self.ledger.has_capacity(name, p)), None)
        if place is None:
            raise _no(400, NO_ROOM)
        pod_id, key = secrets.token_hex(7), f"rpa_{secrets.token_hex(20)}"
        self._pod_keys[key] = pod_id
        return NewMachine(
            id=pod_id,
            token=str(body["name"]),
            region=place,
            zone="",
            instance_type=name,
            gpus=gpus,
            gpu_name=str(body["gpu"]["id"]) if gpus else "",
            usd_per_hour=usd,
            user_data=str(body.get("args", "")),
            tags=tags_of(body.get("env", {})),
            pod=pod_of(body, pod_id=pod_id, place=place, gpus=gpus, api_key=key),
            image_kind=image_kind(str(body["image"])),
        )

    def _priced(self, body: Mapping[str, Any]) -> tuple[str, int, float, tuple[str, ...]]:
        cloud = str(body.get("cloud", "SECURE")).lower()
        if "cpu" in body:
            flavour, vcpus = self.cpus.get(body["cpu"]["id"]), int(body["cpu"].get("vcpuCount", 2))
            if flavour is None or not 2 <= vcpus <= flavour.max_vcpus or vcpus & (vcpus - 1) or cloud != "secure":
                raise _no(400, "invalid cpu flavor or vcpuCount")
            usd = round(vcpus * flavour.usd_per_vcpu_hour, 6)
            return type_name(flavour.id, vcpus, cpu=True), 0, usd, flavour.data_centers
        gpu, count = self.gpus.get(body["gpu"]["id"]), int(body["gpu"].get("count", 1))
        if gpu is None:
            raise _no(400, "unknown GPU type")
        if not 1 <= count <= gpu.max_count[cloud]:
            raise _no(400, NO_ROOM)
        usd = round(count * gpu.usd_per_hour[cloud], 6)
        return type_name(gpu.id, count, community=cloud == "community"), count, usd, gpu.data_centers

    async def _delete(self, request: web.Request) -> web.Response:
        machine = self._known(request.match_info["id"])
        if machine.life is not Life.ENDED:
            self.ledger.ask_end(machine.id)
        return web.Response(status=204)

    async def _act(self, request: web.Request) -> web.Response:
        body = await json_object(request, _no(400, "request could not be processed"))
        action, machine = body.get("action"), self._known(request.match_info["id"])
        if body.keys() != {"action"} or action not in ("start", "stop", "restart", "terminate"):
            problem = "$.action: value must be one of 'start', 'stop', 'restart', 'terminate'"
            raise _no(422, "Request validation failed.", [problem])
        if action not in ACTIONS.get(status_of(machine, frozenset()), []):
            raise _no(409, f"the pod cannot {action} in its present status")
        if action == "terminate":
            self.ledger.ask_end(machine.id)
            return web.Response(status=204)
        {"start": self.ledger.start, "stop": self.ledger.stop, "restart": self.ledger.restart}[action](machine.id)
        return web.json_response(self._body(machine, self.call_faults.content))

    def _body(self, machine: RentedMachine, content_faults: frozenset[FaultKind]) -> dict[str, Any]:
        return pod_body(machine, self._asked[machine.id], content_faults, self.ledger.now())


def _wants_stock(request: web.Request) -> bool:
    stocked, product = request.query.get("include") == "AVAILABILITY", "product" in request.query
    if stocked != product:
        raise _no(400, "include=AVAILABILITY and product go together")
    return stocked
