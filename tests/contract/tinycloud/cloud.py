"""The stand-in of tinycloud: machines in memory, an HTTP API, and all faults of the contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from aiohttp import web

from meshd.contract.faults import CallFaults, CloudFault, FaultEngine, FaultKind
from meshd.contract.standin import ErrorResponse, StandIn, json_object

BOOT_S, END_S, KEEP_S = 30, 20, 3600
TYPES = {
    "h100x1": {"gpu": "h100-sxm", "gpus": 1, "vram": 80, "cpus": 26, "ram": 225, "usd": 2.5},
    "h100x8": {"gpu": "h100-sxm", "gpus": 8, "vram": 80, "cpus": 208, "ram": 1800, "usd": 20.0},
    "a10x1": {"gpu": "a10", "gpus": 1, "vram": 24, "cpus": 30, "ram": 200, "usd": 0.75},
}
REGIONS = ("north", "south")
NO: dict[FaultKind, tuple[int, str]] = {
    FaultKind.NO_CAPACITY: (409, "full"),
    FaultKind.QUOTA: (403, "quota"),
    FaultKind.THROTTLED: (429, "slow-down"),
    FaultKind.AUTH: (401, "bad-key"),
    FaultKind.EXPIRED: (401, "bad-key"),
    FaultKind.INVALID: (422, "invalid"),
}


def no(status: int, code: str) -> ErrorResponse:
    return ErrorResponse(status, {"error": code})


@dataclass
class Machine:
    id: str
    body: Mapping[str, Any]
    born_at: datetime
    faults: CallFaults
    end_asked_at: datetime | None = None

    def state(self, now: datetime) -> str:
        dies = self.faults.lifecycle_fault(FaultKind.DIES)
        ends = not self.faults.has(FaultKind.NEVER_ENDS)
        if dies and now >= self.born_at + timedelta(seconds=dies.seconds):
            return "dead"
        if self.end_asked_at is not None:
            return "dead" if ends and now >= self.end_asked_at + timedelta(seconds=END_S) else "stopping"
        boots = not self.faults.has(FaultKind.NEVER_BOOTS)
        return "up" if boots and now >= self.born_at + timedelta(seconds=BOOT_S) else "starting"

    def shown(self, now: datetime, content_faults: Iterable[FaultKind]) -> dict[str, Any]:
        state = self.state(now)
        if FaultKind.REGRESSED in content_faults and state == "up":
            state = "starting"
        address = "198.51.100.7" if state == "up" and not self.faults.has(FaultKind.NO_ADDRESS) else None
        odd = {"novelty": {"depth": 1}} if FaultKind.UNKNOWN_FIELDS in content_faults else {}
        about = {key: self.body[key] for key in ("name", "type", "region", "tags")}
        return {
            "id": self.id, **about, "ip": address, "born": self.born_at.isoformat(), **odd,
            "state": "dreaming" if FaultKind.UNKNOWN_STATE in content_faults else state,
        }  # fmt: skip


class TinyCloud(StandIn):
    body_max_b = 4 * 1024**2

    def __init__(self, faults: FaultEngine, key: str, now: Callable[[], datetime]) -> None:
        super().__init__(faults)
        self.machines: list[Machine] = []
        self.capacity: dict[tuple[str, str], int] = {}
        self._key, self._now, self._ids = key, now, itertools.count(1)

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        return [
            web.get("/me", self._me),
            web.get("/types", self._types),
            web.get("/machines", self._list),
            web.post("/machines", self._create),
            web.get("/machines/{id}", self._get),
            web.post("/machines/{id}/end", self._end),
        ]

    def operation_of(self, request: web.Request) -> str:
        if request.path == "/machines":
            return "launch" if request.method == "POST" else "list"
        if request.path.startswith("/machines/"):
            return "terminate" if request.method == "POST" else "get"
        return {"/types": "offers", "/me": "check"}.get(request.path, "other")

    def refusal(self, fault: CloudFault) -> ErrorResponse:
        return no(*NO.get(fault.kind, (fault.status, "internal")))

    def no_such_path(self) -> ErrorResponse:
        return no(404, "no-such-path")

    def admit(self, request: web.Request, operation: str) -> Mapping[str, str]:
        if request.headers.get("Authorization") != f"Bearer {self._key}":
            raise no(401, "bad-key")
        return {}

    async def _me(self, request: web.Request) -> web.Response:
        return web.json_response({"data": "somebody"})

    async def _types(self, request: web.Request) -> web.Response:
        rows = [
            {"name": name, "region": region, "free": self._has_capacity(name, region), **row}
            for name, row in TYPES.items()
            for region in REGIONS
        ]
        return web.json_response({"data": rows})

    async def _list(self, request: web.Request) -> web.Response:
        now, after = self._now(), int(request.query.get("after", "0"))
        rows = [machine for machine in self.machines if self._is_shown(machine, now) and self._in_list(machine, now)]
        size = self.page_of(100, request.query.get("after"))
        page = rows[after : after + size]
        more = {"next": str(after + size)} if after + size < len(rows) else {}
        return web.json_response({"data": [one.shown(now, self.call_faults.content) for one in page], **more})

    async def _create(self, request: web.Request) -> web.Response:
        body = await json_object(request, no(422, "invalid"))
        if body.get("type") not in TYPES or body.get("region") not in REGIONS:
            raise no(422, "invalid")
        if not self._has_capacity(body["type"], body["region"]):
            raise no(409, "full")
        made = [
            Machine(f"m{next(self._ids)}", body, self._now(), self.call_faults)
            for _ in range(2 if self.call_faults.has(FaultKind.DUPLICATE) else 1)
        ]
        self.machines += made
        return web.json_response({"data": made[0].shown(self._now(), self.call_faults.content)})

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response({"data": self._known(request).shown(self._now(), self.call_faults.content)})

    async def _end(self, request: web.Request) -> web.Response:
        machine = self._known(request)
        machine.end_asked_at = machine.end_asked_at or self._now()
        return web.json_response({"data": machine.shown(self._now(), self.call_faults.content)})

    def _known(self, request: web.Request) -> Machine:
        now = self._now()
        for machine in self.machines:
            denied = machine.faults.lifecycle_fault(FaultKind.FRESH_NOT_FOUND)
            fresh = denied is not None and now < machine.born_at + timedelta(seconds=denied.seconds)
            if machine.id == request.match_info["id"] and not fresh and self._is_shown(machine, now):
                return machine
        raise no(404, "no-such-machine")

    def _is_shown(self, machine: Machine, now: datetime) -> bool:
        long_ago = machine.end_asked_at is not None and now > machine.end_asked_at + timedelta(seconds=END_S + KEEP_S)
        return machine.state(now) != "dead" or not long_ago

    def _in_list(self, machine: Machine, now: datetime) -> bool:
        lag = machine.faults.lifecycle_fault(FaultKind.LIST_LAG)
        return lag is None or now >= machine.born_at + timedelta(seconds=lag.seconds)

    def _has_capacity(self, name: str, region: str) -> bool:
        here = [m for m in self.machines if (m.body["type"], m.body["region"]) == (name, region)]
        alive = sum(machine.state(self._now()) != "dead" for machine in here)
        return alive < self.capacity.get((name, region), 1000)
