"""The part of the node API for owned machines: their invitations, and the polls of their hosts."""

from __future__ import annotations

from typing import Protocol, TypeVar

import structlog
from aiohttp import web
from pydantic import BaseModel

from meshd.api.host_handlers import HostHandlers
from meshd.api.host_schema import EnrolIn, EvictedIn, HostPollIn
from meshd.bootstrap import tokens
from meshd.errors import JoinRefused, MeshdError
from meshd.model.observed import TailnetPeer

log = structlog.get_logger(__name__)

M = TypeVar("M", bound=BaseModel)


class Calls(Protocol):
    """What every call of the node API goes through."""

    def bearer(self, request: web.Request) -> str:
        """The token. Raises a refusal for a call without one."""
        ...

    def wrong_token(self, request: web.Request) -> MeshdError:
        """The refusal of an unknown token, which is counted."""
        ...

    def count_wrong(self, request: web.Request) -> None:
        """Count a wrong token. Raises a refusal when its address has sent too many."""
        ...

    async def turn(self, request: web.Request, use: str, name: str) -> None:
        """Wait for the caller's turn."""
        ...

    async def caller(self, request: web.Request) -> TailnetPeer:
        """The calling device. Raises a refusal when the tailnet does not know it."""
        ...

    def trust(self, request: web.Request) -> None:
        """The caller has proved who it is."""
        ...

    async def body(self, request: web.Request, model: type[M]) -> M:
        """The body, within its bounds."""
        ...


class HostApi:
    """The routes.

    Args:
        calls: the node API's.
        handlers: the daemon's side.
        poll_hold_s: a poll is held this long at most.
    """

    def __init__(self, calls: Calls, handlers: HostHandlers, poll_hold_s: float) -> None:
        self._calls = calls
        self._handlers = handlers
        self._hold_s = poll_hold_s

    def add_routes(self, app: web.Application) -> None:
        """Serve them."""
        app.router.add_get("/v1/invitation", self._invitation)
        app.router.add_post("/v1/hosts/enrol", self._enrol)
        app.router.add_post("/v1/hosts/poll", self._poll)
        app.router.add_post("/v1/hosts/evicted", self._evicted)

    async def may_fetch(self, request: web.Request) -> bool:
        """Whether the token is of an invitation or of a host, so that its holder gets the agent."""
        token_hash = tokens.hash_token(self._calls.bearer(request))
        if self._handlers.host_of(token_hash) is not None:
            await self._host(request)
            return True
        if self._handlers.invited(token_hash) is None:
            return False
        await self._invited(request)
        return True

    async def _invitation(self, request: web.Request) -> web.Response:
        name, _ = await self._invited(request)
        return web.Response(text=await self._handlers.script(name), content_type="text/x-shellscript")

    async def _enrol(self, request: web.Request) -> web.Response:
        name, peer = await self._invited(request)
        answer = await self._handlers.enrol(name, peer, await self._calls.body(request, EnrolIn))
        log.info("host_enrolled", host=name, address=peer.tailnet_ip)
        return web.json_response(answer.to_wire())

    async def _poll(self, request: web.Request) -> web.Response:
        name, peer = await self._host(request)
        report = await self._calls.body(request, HostPollIn)
        hold_s = self._hold_s if report.hold_s is None else min(report.hold_s, self._hold_s)
        return web.json_response((await self._handlers.poll(name, peer, report, hold_s)).to_wire())

    async def _evicted(self, request: web.Request) -> web.Response:
        name, _ = await self._host(request)
        await self._handlers.evicted(name, await self._calls.body(request, EvictedIn))
        return web.json_response({})

    async def _invited(self, request: web.Request) -> tuple[str, TailnetPeer]:
        """The host of the invitation, and the calling device, if that may use it."""
        name = self._handlers.invited(tokens.hash_token(self._calls.bearer(request)))
        if name is None:
            raise self._calls.wrong_token(request)
        await self._calls.turn(request, "invitation", name)
        peer = await self._calls.caller(request)
        try:
            self._handlers.check_invitation(name, peer)
        except JoinRefused:
            self._calls.count_wrong(request)
            raise
        return name, peer

    async def _host(self, request: web.Request) -> tuple[str, TailnetPeer]:
        """The host of the token, and the calling device, if it is that host's."""
        name = self._handlers.host_of(tokens.hash_token(self._calls.bearer(request)))
        if name is None:
            raise self._calls.wrong_token(request)
        await self._calls.turn(request, "host", name)
        peer = await self._calls.caller(request)
        try:
            self._handlers.check_host(name, peer)
        except JoinRefused:
            self._calls.count_wrong(request)
            raise
        self._calls.trust(request)
        return name, peer
