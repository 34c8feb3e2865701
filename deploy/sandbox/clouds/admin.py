"""The admin API of the stand-ins: machines, costs, and faults to inject."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from aiohttp import web

from deploy.sandbox.clouds.host import Host
from deploy.sandbox.clouds.lambda_api import LambdaCloud
from deploy.sandbox.clouds.lambda_types import REGIONS
from deploy.sandbox.clouds.ledger import Ledger, Life, RentedMachine
from meshd.contract.faults import CloudFault, FaultEngine, FaultKind, When

_SUMS = ("cost_usd", "billed_usd", "usd_per_hour_now")


@dataclass(frozen=True, slots=True)
class Cloud:
    """The parts of one cloud that the API uses."""

    ledger: Ledger
    faults: FaultEngine


class Admin:
    """The admin API. Every answer is JSON; a wrong request gets 400 with {"error": text}."""

    def __init__(self, clouds: Mapping[str, Cloud], lambda_cloud: LambdaCloud, host: Host) -> None:
        self._clouds = clouds
        self._lambda = lambda_cloud
        self._host = host

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(middlewares=[_errors])
        app.add_routes(
            [
                web.get("/machines", self._machines),
                web.post("/machines/{cloud}/{id}/die", self._die),
                web.post("/machines/{cloud}/{id}/preempt", self._preempt),
                web.post("/machines/{cloud}/{id}/notice", self._notice),
                web.get("/costs", self._costs),
                web.get("/faults", self._faults),
                web.post("/faults", self._inject),
                web.delete("/faults", self._clear),
                web.put("/clouds/{cloud}/capacity", self._capacity),
                web.put("/clouds/lambda/types/{name}", self._lambda_type),
                web.put("/clouds/lambda/limits", self._limits),
                web.get("/boot-defaults", self._boot_defaults),
                web.put("/boot-defaults", self._set_boot_defaults),
            ]
        )
        return app

    async def _machines(self, request: web.Request) -> web.Response:
        wanted = request.query.get("cloud")
        rows = [
            _row(name, machine, cloud.ledger)
            for name, cloud in self._clouds.items()
            if wanted in (None, name)
            for machine in cloud.ledger.everything()
        ]
        return web.json_response({"machines": rows})

    async def _die(self, request: web.Request) -> web.Response:
        self._cloud(request.match_info["cloud"]).ledger.kill(request.match_info["id"])
        return web.json_response({})

    async def _preempt(self, request: web.Request) -> web.Response:
        self._cloud(request.match_info["cloud"]).ledger.preempt(request.match_info["id"])
        return web.json_response({})

    async def _notice(self, request: web.Request) -> web.Response:
        ledger = self._cloud(request.match_info["cloud"]).ledger
        ledger.notice(request.match_info["id"], float((await request.json())["ends_in_s"]))
        return web.json_response({})

    async def _costs(self, request: web.Request) -> web.Response:
        clouds = {name: _costs(cloud.ledger) for name, cloud in self._clouds.items()}
        total = {key: round(sum(c[key] for c in clouds.values()), 6) for key in _SUMS}
        return web.json_response({"clouds": clouds, **total})

    async def _faults(self, request: web.Request) -> web.Response:
        rows = [{"cloud": n, **asdict(f)} for n, cloud in self._clouds.items() for f in cloud.faults.pending()]
        return web.json_response({"faults": rows})

    async def _inject(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = str(body.pop("cloud", "*"))
        fault = CloudFault(kind=FaultKind(body.pop("kind")), when=When(body.pop("when", "next")), **body)
        for cloud in self._some(name):
            cloud.faults.inject(fault)
        return web.json_response({}, status=201)

    async def _clear(self, request: web.Request) -> web.Response:
        for cloud in self._some(request.query.get("cloud", "*")):
            cloud.faults.clear()
            cloud.ledger.release()
        return web.json_response({})

    async def _capacity(self, request: web.Request) -> web.Response:
        body = await request.json()
        free = body["machines"]
        ledger = self._cloud(request.match_info["cloud"]).ledger
        capacity = None if free is None else int(free)
        ledger.set_capacity(str(body.get("instance_type", "*")), str(body.get("place", "*")), capacity)
        return web.json_response({})

    async def _lambda_type(self, request: web.Request) -> web.Response:
        body = await request.json()
        kind = self._lambda.types[request.match_info["name"]]
        regions = tuple(body.get("regions", kind.regions))
        if not set(regions) <= set(REGIONS):
            raise ValueError(f"regions are {', '.join(REGIONS)}")
        cents = int(body.get("cents_per_hour", kind.cents_per_hour))
        self._lambda.types[kind.name] = replace(kind, regions=regions, cents_per_hour=cents)
        return web.json_response({})

    async def _limits(self, request: web.Request) -> web.Response:
        body = await request.json()
        limits = self._lambda.limits
        limits.call_spacing_s = float(body.get("call_spacing_s", limits.call_spacing_s))
        limits.launch_spacing_s = float(body.get("launch_spacing_s", limits.launch_spacing_s))
        return web.json_response(asdict(limits))

    async def _boot_defaults(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self._host.boot_defaults))

    async def _set_boot_defaults(self, request: web.Request) -> web.Response:
        self._host.boot_defaults = replace(self._host.boot_defaults, **await request.json())
        return web.json_response(asdict(self._host.boot_defaults))

    def _cloud(self, name: str) -> Cloud:
        return self._clouds[name]

    def _some(self, name: str) -> list[Cloud]:
        return list(self._clouds.values()) if name == "*" else [self._clouds[name]]


def _row(cloud: str, machine: RentedMachine, ledger: Ledger) -> dict[str, Any]:
    return {
        "cloud": cloud,
        "id": machine.id,
        "name": machine.name,
        "token": machine.token,
        "region": machine.region,
        "zone": machine.zone,
        "instance_type": machine.instance_type,
        "gpus": machine.gpus,
        "gpu_name": machine.gpu_name,
        "spot": machine.spot,
        "life": machine.life.value,
        "end": machine.end.value if machine.end else None,
        "address": machine.address,
        "created_at": machine.created_at.isoformat(),
        "ended_at": machine.ended_at.isoformat() if machine.ended_at else None,
        "usd_per_hour": machine.usd_per_hour,
        "cost_usd": round(machine.cost_usd(ledger.now()), 6),
        "billed_usd": round(machine.billed_usd(ledger.now(), ledger.rules.billing), 6),
        "tags": machine.tags,
    }


def _costs(ledger: Ledger) -> dict[str, float]:
    now = ledger.now()
    machines = ledger.everything()
    return {
        "cost_usd": round(sum(m.cost_usd(now) for m in machines), 6),
        "billed_usd": round(sum(m.billed_usd(now, ledger.rules.billing) for m in machines), 6),
        "usd_per_hour_now": round(sum(m.usd_per_hour for m in machines if m.life is not Life.ENDED), 6),
        "machines_now": sum(m.life is not Life.ENDED for m in machines),
        "machines_ever": len(machines),
    }


@web.middleware
async def _errors(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
    try:
        response = await handler(request)
    except (ValueError, TypeError) as error:
        return web.json_response({"error": str(error)}, status=400)
    except KeyError as error:
        return web.json_response({"error": f"not found: {error.args[0]}"}, status=404)
    assert isinstance(response, web.StreamResponse)
    return response
