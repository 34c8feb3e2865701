"""The API that machines call, on the head's tailnet address only."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog
from aiohttp import web
from pydantic import BaseModel, ValidationError

from meshd.api.connections import ConnectionLimiter, ConnectionLimits, address_of, share
from meshd.api.host_api import HostApi
from meshd.api.host_handlers import HostHandlers
from meshd.api.node_handlers import NodeHandlers
from meshd.api.node_results import LOGS_MAX_B
from meshd.api.node_schema import JoinIn, MungeIn, PollIn, TroubleIn
from meshd.api.node_throttle import Throttle
from meshd.bootstrap import tokens
from meshd.bootstrap.assets import agent_zipapp
from meshd.errors import JoinRefused, MeshdError, MungeError
from meshd.model.observed import TailnetPeer
from meshd.runtime.clock import Clock
from meshd.runtime.tokenbucket import TokenBuckets

log = structlog.get_logger(__name__)

BODY_MAX_B = 64 * 1024
BODY_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 60.0
BURST = 30
"""How many calls of one machine are answered at once. A join with its first commands makes about ten."""
CALL_EVERY_S = 0.5
"""Seconds between further calls: faster ones wait for their turn."""
QUEUE_MAX_S = 20.0
"""A call that would wait longer is refused."""
TROUBLE_MAX_B = 4096
TROUBLE_BURST = 5
TROUBLE_EVERY_S = 15.0
"""Limits on a machine's reports of what keeps it from joining."""
RETRY = "the agent tries again by itself"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
M = TypeVar("M", bound=BaseModel)


def node_limits(poll_hold_s: float) -> ConnectionLimits:
    """The limits of the node API. An agent holds one connection, and opens another when that breaks."""
    return ConnectionLimits(total=share(0.5, 32768), each=16, answer_s=CALL_TIMEOUT_S + poll_hold_s + 30.0)


class NodeApi:
    """The server.

    Args:
        handlers: the daemon's side.
        poll_hold_s: a poll is held this long at most.
        limits: of its connections; None: `node_limits`.
        hosts: the daemon's side for owned machines; None: there are none.
        clock: for tickets, for GET /v1/time, and for callers with wrong tokens.
    """

    def __init__(
        self,
        handlers: NodeHandlers,
        *,
        poll_hold_s: float,
        clock: Clock,
        limits: ConnectionLimits | None = None,
        hosts: HostHandlers | None = None,
    ) -> None:
        self._handlers = handlers
        self._hosts = HostApi(self, hosts, poll_hold_s) if hosts is not None else None
        self._hold_s = poll_hold_s
        self._clock = clock
        self._throttle = Throttle()
        self._pace = TokenBuckets(BURST, CALL_EVERY_S)
        self._reports = TokenBuckets(TROUBLE_BURST, TROUBLE_EVERY_S)
        self._connections = ConnectionLimiter("node_api", limits or node_limits(poll_hold_s), address_of)
        self._runner: web.AppRunner | None = None

    def app(self) -> web.Application:
        """The routes; every other path is 404."""
        app = web.Application(client_max_size=BODY_MAX_B, middlewares=[self._connections.middleware(), self._boundary])
        app.router.add_get("/v1/time", self._time)
        app.router.add_get("/v1/agent", self._get_agent)
        app.router.add_get("/v1/needs", self._needs)
        app.router.add_post("/v1/trouble", self._take_trouble)
        app.router.add_post("/v1/join", self._join)
        app.router.add_post("/v1/munge", self._munge)
        app.router.add_post("/v1/poll", self._poll)
        if self._hosts is not None:
            self._hosts.add_routes(app)
        return app

    async def start(self, address: str, port: int) -> int:
        """Listen; returns the port, which the system chooses when `port` is 0.

        Raises:
            OSError: the address is not this machine's (yet), or the port is taken.
        """
        runner = self._connections.runner(self.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await runner.setup()
        try:
            site = web.TCPSite(runner, address, port, reuse_address=True, backlog=self._connections.backlog)
            await site.start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        bound: int = runner.addresses[0][1]
        log.info("node_api_listens", address=address, port=bound)
        return bound

    async def stop(self) -> None:
        """Stop listening; held polls are cut, and their agents come again."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _time(self, _request: web.Request) -> web.Response:
        return web.json_response({"unix": self._clock.now().timestamp()})

    async def _get_agent(self, request: web.Request) -> web.Response:
        of_host = self._hosts is not None and await self._hosts.may_fetch(request)
        if not of_host and await self._ticket(request) is None:
            await self._node(request)
        return web.Response(body=agent_zipapp(), content_type="application/zip")

    async def _needs(self, request: web.Request) -> web.Response:
        joining = await self._ticket(request)
        machine = joining[0].machine if joining else (await self._node(request))[0].machine
        return web.json_response((await self._handlers.needs(machine)).to_wire())

    async def _join(self, request: web.Request) -> web.Response:
        joining = await self._ticket(request)
        if joining is not None:
            ticket, peer = joining
            body = await self.body(request, JoinIn)
            machine, answer = ticket.machine, await self._handlers.join(ticket.machine, peer, body.facts.to_model())
        else:
            caller, peer = await self._node(request)
            body = await self.body(request, JoinIn)
            machine = caller.machine
            answer = await self._handlers.rejoin(caller, peer, body.facts.to_model(), body.munge_key)
        log.info("machine_joined", machine=machine, slot=answer.slot, address=peer.tailnet_ip, again=joining is None)
        return web.json_response(answer.to_wire())

    async def _take_trouble(self, request: web.Request) -> web.Response:
        joining = await self._ticket(request)
        machine = joining[0].machine if joining else (await self._node(request))[0].machine
        report = await self.body(request, TroubleIn, TROUBLE_MAX_B)
        if not self._reports.try_take(machine, self._clock.monotonic_s()):
            raise _NodeCallError(429, "this machine reports too often", f"wait {TROUBLE_EVERY_S:g} s", code="paced")
        await self._handlers.trouble(machine, report.stage, report.text)
        return web.json_response({})

    async def _munge(self, request: web.Request) -> web.Response:
        machine = await self._known(request)
        body = await self.body(request, MungeIn)
        credential = await self._handlers.munge_exchange(machine, body.credential)
        return web.json_response({"decoded": True, "credential": credential})

    async def _poll(self, request: web.Request) -> web.Response:
        machine = await self._known(request)
        room_b = BODY_MAX_B + (LOGS_MAX_B if self._handlers.expects_logs(machine) else 0)
        report = await self.body(request, PollIn, room_b)
        hold_s = self._hold_s if report.hold_s is None else min(report.hold_s, self._hold_s)
        commands = await self._handlers.poll(machine, report, hold_s)
        return web.json_response({"commands": [command.to_wire() for command in commands]})

    async def _ticket(self, request: web.Request) -> tuple[tokens.JoinTicket, TailnetPeer] | None:
        """The ticket of a join token and the calling device, if that may join with it; None: it is no join token."""
        token = self.bearer(request)
        ticket = await self._handlers.machine_for_join(tokens.hash_token(token))
        if ticket is None or not tokens.verify(token, ticket.token_hash):
            return None
        if ticket.gang:
            await self.turn(request, "join", ticket.gang)
            try:
                ticket = await self._handlers.ticket_in_gang(ticket, await self.caller(request))
            except JoinRefused:
                self.count_wrong(request)
                raise
        if ticket.closed:
            # Users of the machine can read this token: their tries count as wrong guesses.
            self.count_wrong(request)
        await self.turn(request, "join", ticket.machine)
        peer = await self.caller(request)
        try:
            tokens.check_join(ticket, peer.hostname, peer.id, self._clock.now())
        except JoinRefused as error:
            await self._handlers.join_refused(ticket.machine, peer, error)
            raise
        await self._handlers.check_device(ticket.machine, peer)
        return ticket, peer

    async def _node(self, request: web.Request) -> tuple[tokens.NodeCaller, TailnetPeer]:
        """The machine of a node token and the calling device, if it is that machine's."""
        found = await self._handlers.machine_for_node(tokens.hash_token(self.bearer(request)))
        if found is None:
            raise self.wrong_token(request)
        await self.turn(request, "node", found.machine)
        peer = await self.caller(request)
        if not found.device_id:
            tokens.check_hostname(found.machine, peer.hostname)
            await self._handlers.check_device(found.machine, peer)
        elif peer.id != found.device_id:
            await self._handlers.take_device(found.machine, peer)
        self.trust(request)
        await self._handlers.proved(found)
        return found, peer

    async def _known(self, request: web.Request) -> str:
        """The machine of a node token, if the journal has its facts."""
        caller, _ = await self._node(request)
        if not caller.known:
            raise _NodeCallError(
                401, "the head has found this machine again and lacks its facts", "the agent joins again by itself",
                code="rejoin",
            )  # fmt: skip
        return caller.machine

    def trust(self, request: web.Request) -> None:
        """The caller has proved which machine it is."""
        self._connections.trust(request)

    async def caller(self, request: web.Request) -> TailnetPeer:
        """The calling device. Raises _NodeCallError when the tailnet does not know it."""
        peer = await self._handlers.whois(_address(request))
        if peer is None:
            raise _NodeCallError(
                403, "the tailnet does not know the caller", "only machines of the tailnet are served here",
                code="unknown_caller",
            )  # fmt: skip
        return peer

    def bearer(self, request: web.Request) -> str:
        """The token of the call. Raises _NodeCallError for a call without one."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not 16 <= len(token) <= tokens.TOKEN_MAX_CHARS:
            raise self.wrong_token(request)
        return token

    def count_wrong(self, request: web.Request) -> None:
        """Raise _NodeCallError when the address has sent too many wrong tokens."""
        address, now_s = _address(request), self._clock.monotonic_s()
        wait_s = self._throttle.wait_s(address, now_s)
        if wait_s > 0:
            cure = f"wait {math.ceil(wait_s)} s; right tokens are served meanwhile"
            raise _NodeCallError(429, "too many wrong tokens from this address", cure, code="throttled")
        self._throttle.wrong(address, now_s)

    def wrong_token(self, request: web.Request) -> _NodeCallError:
        """The refusal of an unknown token, which is counted."""
        self.count_wrong(request)
        log.warning("node_token_refused", address=_address(request), path=request.path)
        return _NodeCallError(
            401, "the token is not known here", "it is used up, of another cluster, or the machine is gone",
            code="unknown_token",
        )  # fmt: skip

    async def turn(self, request: web.Request, use: str, machine: str) -> None:
        """Wait for the machine's turn, so that one that calls without a pause gets no more than others.

        A caller with only the join token, which users of the machine may read, has turns of its own. So has a caller
        from another address. Neither uses up the agent's turns.
        """
        caller, now_s = (use, machine, _address(request)), self._clock.monotonic_s()
        if self._pace.wait_s(caller, now_s) > QUEUE_MAX_S:
            raise _NodeCallError(429, "this machine calls too often", f"wait {math.ceil(QUEUE_MAX_S)} s", code="paced")
        if wait_s := self._pace.take(caller, now_s):
            await self._clock.sleep(wait_s)

    async def body(self, request: web.Request, model: type[M], max_b: int = BODY_MAX_B) -> M:
        """The body, as a model.

        Raises:
            _NodeCallError: it is larger than `max_b` bytes, or does not arrive within BODY_TIMEOUT_S.
        """
        too_large = _NodeCallError(413, f"the body is larger than {max_b} bytes", "send less at once")
        if (request.content_length or 0) > max_b:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for part in request.content.iter_any():
                    body += part
                    if len(body) > max_b:
                        raise too_large
        except TimeoutError:
            raise _NodeCallError(408, f"the body did not come within {BODY_TIMEOUT_S:g} s", RETRY) from None
        return model.model_validate_json(bytes(body))

    @web.middleware
    async def _boundary(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer every failure with reason and cure; no answer repeats what was sent."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S + self._hold_s):
                return await handler(request)
        except _NodeCallError as error:
            return _no(error.status, error.reason, error.cure, code=error.code)
        except JoinRefused as error:
            log.warning("join_refused", address=_address(request), reason=error.reason, fatal=error.fatal)
            return _no(403, error.reason, error.cure, fatal=error.fatal, code=error.code)
        except ValidationError as error:
            where = sorted({".".join(str(part) for part in one["loc"]) for one in error.errors(include_input=False)})
            return _no(400, f"the body cannot be used: {', '.join(where)[:400] or 'not JSON'}", "", fatal=False)
        except web.HTTPException as error:
            return _no(error.status, error.reason, "", fatal=False)
        except MungeError as error:
            return _no(409, f"the head's munge: {error}", RETRY, fatal=False)
        except (MeshdError, TimeoutError) as error:
            log.warning("node_call_failed", path=request.path, error=str(error) or "timed out")
            return _no(503, f"the head cannot answer now: {error or 'timed out'}", RETRY, fatal=False)
        except Exception:  # the API boundary: a fault in one call must not reach another
            log.exception("node_call_broke", path=request.path)
            return _no(500, "a fault inside meshd; see the head's log", RETRY, fatal=False)


class _NodeCallError(MeshdError):
    """A refused call: status, reason and cure of the answer."""

    def __init__(self, status: int, reason: str, cure: str, code: str = "") -> None:
        self.status = status
        self.code = code
        self.reason = reason
        self.cure = cure
        super().__init__(reason)


def _no(status: int, reason: str, cure: str, *, fatal: bool = False, code: str = "") -> web.Response:
    body: dict[str, Any] = {"reason": reason, "cure": cure, "fatal": fatal, "code": code}
    return web.json_response(body, status=status)


def _address(request: web.Request) -> str:
    return request.remote or ""
