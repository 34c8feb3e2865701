"""The metadata services of EC2 and GCE at 169.254.169.254. The caller's address identifies the machine.

As in the real clouds, every process of a machine may read it. Version 2 of EC2's needs a token, which PUT gives to
every caller; the answer to PUT travels only as many hops as the launch allows. Version 1 works unless the launch has
`HttpTokens=required`. GCE needs a header. Facts: docs.aws.amazon.com/AWSEC2/latest/UserGuide/
instancedata-data-retrieval.html and spot-instance-termination-notices.html,
cloud.google.com/compute/docs/metadata/querying-metadata and docs/instances/spot.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Mapping

from aiohttp import web

from deploy.sandbox.clouds.ledger import Ledger, Life, RentedMachine

PORT = 80
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 - a header's name
FLAVOR_HEADER = "Metadata-Flavor"
TTL_MAX_S = 21600
ATTRIBUTES = "/computeMetadata/v1/instance/attributes/"
INSTANCE = "/computeMetadata/v1/instance/"
HOLD_LOOK_S = 0.1
HOLD_MAX_S = 600.0


class MetadataService:
    """Both services. A machine reaches its own cloud's. A test sets `told_id` in a machine's metadata for a false id.

    Args:
        ledgers: the clouds' machines, by the cloud's name.
    """

    def __init__(self, ledgers: Mapping[str, Ledger]) -> None:
        self._ledgers = ledgers
        self._tokens: dict[str, str] = {}

    def app(self) -> web.Application:
        """The application; other paths give 404."""
        app = web.Application()
        app.router.add_put("/latest/api/token", self._token)
        app.router.add_get("/latest/user-data", self._user_data)
        app.router.add_get("/latest/meta-data/instance-id", self._instance_id)
        app.router.add_get("/latest/meta-data/ami-launch-index", self._launch_index)
        app.router.add_get("/computeMetadata/v1/instance/name", self._name)
        app.router.add_get("/computeMetadata/v1/instance/zone", self._zone)
        app.router.add_get("/latest/meta-data/spot/instance-action", self._instance_action)
        app.router.add_get("/latest/meta-data/events/recommendations/rebalance", self._rebalance)
        app.router.add_get(INSTANCE + "{name:preempted|maintenance-event}", self._value)
        app.router.add_get(ATTRIBUTES, self._attributes)
        app.router.add_get(ATTRIBUTES + "{key}", self._attribute)
        return app

    async def _token(self, request: web.Request) -> web.StreamResponse:
        machine = self._machine("aws", request)
        ttl = request.headers.get(TTL_HEADER, "")
        if not ttl.isdigit() or not 1 <= int(ttl) <= TTL_MAX_S:
            raise web.HTTPBadRequest(text="Bad Request")
        token = secrets.token_urlsafe(42)
        self._tokens[token] = machine.id
        made: socket.socket | None = request.transport.get_extra_info("socket") if request.transport else None
        if made is not None:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, int(machine.metadata.get("hop_limit", "1")))
        return web.Response(text=token, headers={TTL_HEADER: ttl})

    async def _user_data(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._allowed(request).user_data)

    async def _instance_id(self, request: web.Request) -> web.StreamResponse:
        machine = self._allowed(request)
        return web.Response(text=machine.metadata.get("told_id", machine.id))

    async def _launch_index(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._allowed(request).metadata.get("launch_index", "0"))

    async def _name(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._flavored(request).token, headers={FLAVOR_HEADER: "Google"})

    async def _zone(self, request: web.Request) -> web.StreamResponse:
        zone = self._flavored(request).zone
        return web.Response(text=f"projects/123456789012/zones/{zone}", headers={FLAVOR_HEADER: "Google"})

    async def _instance_action(self, request: web.Request) -> web.StreamResponse:
        at = self._allowed(request).preempts_at
        if at is None:
            raise web.HTTPNotFound
        return web.json_response({"action": "terminate", "time": f"{at:%Y-%m-%dT%H:%M:%SZ}"})

    async def _rebalance(self, request: web.Request) -> web.StreamResponse:
        at = self._allowed(request).rebalance_at
        if at is None:
            raise web.HTTPNotFound
        return web.json_response({"noticeTime": f"{at:%Y-%m-%dT%H:%M:%SZ}"})

    async def _value(self, request: web.Request) -> web.StreamResponse:
        """A value of GCE's; with `wait_for_change` the answer waits until its ETag is another than `last_etag`."""
        machine, query = self._flavored(request), request.query
        last, wait = query.get("last_etag", ""), query.get("wait_for_change") == "true"
        left_s = min(float(query.get("timeout_sec", HOLD_MAX_S)), HOLD_MAX_S)
        while True:
            if request.match_info["name"] == "preempted":
                text = "FALSE" if machine.preempts_at is None else "TRUE"
            else:
                text = "TERMINATE_ON_HOST_MAINTENANCE" if machine.host_stops else "NONE"
            etag = text.encode().hex()[:16]
            if not wait or last not in ("", etag) or left_s <= 0:
                return web.Response(text=text, headers={FLAVOR_HEADER: "Google", "ETag": etag})
            last = last or etag
            left_s -= HOLD_LOOK_S
            await asyncio.sleep(HOLD_LOOK_S)

    async def _attribute(self, request: web.Request) -> web.StreamResponse:
        machine = self._flavored(request)
        value = machine.metadata.get(request.match_info["key"])
        if value is None:
            raise web.HTTPNotFound
        return web.Response(text=value, headers={FLAVOR_HEADER: "Google"})

    async def _attributes(self, request: web.Request) -> web.StreamResponse:
        machine = self._flavored(request)
        headers = {FLAVOR_HEADER: "Google"}
        if request.query.get("recursive") == "true":
            return web.json_response(dict(machine.metadata), headers=headers)
        return web.Response(text="".join(f"{key}\n" for key in machine.metadata), headers=headers)

    def _allowed(self, request: web.Request) -> RentedMachine:
        machine = self._machine("aws", request)
        token = request.headers.get(TOKEN_HEADER)
        if token is None and machine.metadata.get("http_tokens") == "required":
            raise web.HTTPUnauthorized(text="Unauthorized")
        if token is not None and self._tokens.get(token) != machine.id:
            raise web.HTTPUnauthorized(text="Unauthorized")
        return machine

    def _flavored(self, request: web.Request) -> RentedMachine:
        machine = self._machine("gce", request)
        if request.headers.get(FLAVOR_HEADER) != "Google":
            raise web.HTTPForbidden(text="Missing Metadata-Flavor:Google header.")
        return machine

    def _machine(self, cloud: str, request: web.Request) -> RentedMachine:
        for machine in self._ledgers[cloud].everything():
            if machine.address and machine.address == request.remote and machine.life is not Life.ENDED:
                return machine
        raise web.HTTPNotFound
