"""Stand-ins for the tailnet's tests: a clock without waiting, recordings, a tailscaled and an admin API on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from tests.clocks import HandClock

RECORDINGS = Path(__file__).with_name("recordings")


class FakeTailscaled:
    """A LocalAPI on a unix socket: a status that tests change, a bus that tests feed."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.status: dict[str, object] = json.loads((RECORDINGS / "two-idle.json").read_text())
        self.answers: dict[str, tuple[int, str]] = {}
        self.hosts: list[str] = []
        self.masks: list[str] = []
        self.status_calls = 0
        self._feeds: list[asyncio.Queue[dict[str, object] | None]] = []
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/localapi/v0/status", self._status)
        app.router.add_get("/localapi/v0/watch-ipn-bus", self._bus)
        app.router.add_route("*", "/localapi/v0/{what}", self._canned)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.socket)).start()

    async def stop(self) -> None:
        self.hang_up()
        if self._runner:
            await self._runner.cleanup()
            self._runner = None
        self.socket.unlink(missing_ok=True)

    def say(self, **note: object) -> None:
        for feed in self._feeds:
            feed.put_nowait(note)

    def hang_up(self) -> None:
        for feed in self._feeds:
            feed.put_nowait(None)

    async def _status(self, request: web.Request) -> web.Response:
        self.hosts.append(request.host)
        self.status_calls += 1
        return web.json_response(self.status)

    async def _canned(self, request: web.Request) -> web.Response:
        code, body = self.answers.get(request.match_info["what"], (404, "404 not found"))
        return web.Response(status=code, text=body)

    async def _bus(self, request: web.Request) -> web.StreamResponse:
        self.masks.append(request.query["mask"])
        response = web.StreamResponse()
        await response.prepare(request)
        feed: asyncio.Queue[dict[str, object] | None] = asyncio.Queue()
        self._feeds.append(feed)
        await response.write(json.dumps({"State": 6, "InitialStatus": self.status}).encode() + b"\n")
        while (note := await feed.get()) is not None:
            await response.write(json.dumps(note).encode() + b"\n")
        self._feeds.remove(feed)
        return response


@pytest.fixture
def recording() -> Callable[[str], str]:
    return lambda name: (RECORDINGS / name).read_text()


@pytest.fixture
def clock() -> HandClock:
    return HandClock(datetime(2026, 11, 27, 12, tzinfo=UTC))


@pytest.fixture
async def tailscaled(tmp_path: Path) -> AsyncIterator[FakeTailscaled]:
    fake = FakeTailscaled(tmp_path / "s.sock")
    await fake.start()
    yield fake
    await fake.stop()
