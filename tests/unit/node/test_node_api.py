"""The node API's doors: who is let in, what is refused, and what nobody is told."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr

from deploy.node.meshd_node.headlink import HeadLink
from meshd.api.node_api import NodeApi
from meshd.bootstrap.assets import agent_zipapp
from meshd.errors import TailnetError
from meshd.runtime.clock import SystemClock
from tests.unit.node.standins import KEY, OTHER_KEY, MemoryHandlers, credential, new_token

FACTS: dict[str, Any] = {
    "shape": {
        "cpus": 16, "boards": 1, "sockets_per_board": 1, "cores_per_socket": 8, "threads_per_core": 2,
        "memory_mib": 128000,
    },
    "gpus": [
        {"index": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-0", "memory_mib": 81559, "device": "/dev/nvidia0"}
    ],
    "slurmd_version": "24.11.5", "tailscale_version": "1.102.5", "agent_version": "0.1.0", "os": "Debian",
    "arch": "x86_64", "clock_skew_s": 0.1, "ssh_host_key": "ssh-ed25519 AAAA",
}  # fmt: skip


@dataclass
class Client:
    """Calls with a token; (status, answer)."""

    session: aiohttp.ClientSession
    base: str
    token: str

    async def __call__(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        async with self.session.request(method, self.base + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()


@dataclass
class Door:
    """A head with its API, and a client."""

    handlers: MemoryHandlers
    call: Client
    join_token: SecretStr

    async def join(self) -> str:
        status, answer = await self.call("POST", "/v1/join", {"facts": FACTS})
        assert status == 200, answer
        return str(answer["node_token"])


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    token = new_token()
    handlers = MemoryHandlers(token)
    api = NodeApi(handlers, poll_hold_s=0.3, clock=SystemClock())
    port = await api.start("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        yield Door(handlers, Client(session, f"http://127.0.0.1:{port}", token.get_secret_value()), token)
    await api.stop()


async def test_the_time_is_told_to_everybody(door: Door) -> None:
    status, answer = await door.call("GET", "/v1/time", token="")
    assert status == 200
    assert abs(answer["unix"] - time.time()) < 5


async def test_join_answer(door: Door) -> None:
    status, answer = await door.call("POST", "/v1/join", {"facts": {**FACTS, "from_the_future": 1}, "more": 2})
    assert status == 200
    assert answer["slot"] == "h100-1"
    assert answer["conf_server"] == "100.64.0.1:6817"
    assert len(answer["node_token"]) == 64
    assert answer["roster"] == door.handlers.roster


async def test_the_same_device_may_join_again_and_another_may_not(door: Door) -> None:
    assert await door.join() == await door.join(), "the answer may be lost on its way"
    door.handlers.peers["127.0.0.1"] = replace(door.handlers.peers["127.0.0.1"], id="n2")
    status, answer = await door.call("POST", "/v1/join", {"facts": FACTS})
    assert status == 403
    assert answer["fatal"] is True
    assert answer["code"] == "other_device"


async def test_a_node_token_from_another_device_is_judged(door: Door) -> None:
    token = await door.join()
    own = door.handlers.peers["127.0.0.1"]
    door.handlers.peers["127.0.0.1"] = replace(own, id="n2", hostname="mesh-h100-2-zzzzzz")
    for method, path, body in (("POST", "/v1/poll", {}), ("GET", "/v1/agent", None)):
        status, answer = await door.call(method, path, body, token=token)
        assert status == 403
        assert "mesh-h100-2-zzzzzz has the node token of" in answer["reason"]
    door.handlers.peers["127.0.0.1"] = replace(own, id="n2")
    assert (await door.call("POST", "/v1/poll", {"hold_s": 0}, token=token))[0] == 200


async def test_another_machines_device_may_not_join(door: Door) -> None:
    door.handlers.others_devices = {"n1"}
    for method, path in (("POST", "/v1/join"), ("GET", "/v1/needs"), ("GET", "/v1/agent")):
        status, answer = await door.call(method, path, {"facts": FACTS} if method == "POST" else None)
        assert status == 403, path
        assert (answer["fatal"], answer["cure"]) == (True, "make the image anew")


async def test_only_the_machine_that_the_token_was_made_for(door: Door) -> None:
    door.handlers.peers["127.0.0.1"] = replace(door.handlers.peers["127.0.0.1"], hostname="mesh-h100-1-zzzzzz")
    for method, path in (("POST", "/v1/join"), ("GET", "/v1/needs"), ("GET", "/v1/agent")):
        status, answer = await door.call(method, path, {"facts": FACTS} if method == "POST" else None)
        assert status == 403, path
        assert "was made for mesh-h100-1-k7q2mz" in answer["reason"]


async def test_a_caller_from_outside_the_tailnet(door: Door) -> None:
    door.handlers.peers.clear()
    status, answer = await door.call("POST", "/v1/join", {"facts": FACTS})
    assert status == 403
    assert "tailnet" in answer["reason"]


async def test_an_expired_ticket(door: Door) -> None:
    for hashed, ticket in door.handlers.tickets.items():
        door.handlers.tickets[hashed] = replace(ticket, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    status, answer = await door.call("POST", "/v1/join", {"facts": FACTS})
    assert status == 403
    assert answer["code"] == "ticket_expired"
    assert "join_token_ttl_s" in answer["cure"]


async def test_a_device_that_joined_may_not_join_again_when_the_ticket_has_expired(door: Door) -> None:
    await door.join()
    for hashed, ticket in door.handlers.tickets.items():
        door.handlers.tickets[hashed] = replace(ticket, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    status, answer = await door.call("POST", "/v1/join", {"facts": FACTS})
    assert (status, answer["code"]) == (403, "ticket_expired")


async def test_wrong_tokens_are_refused_and_then_slowed_down(door: Door) -> None:
    statuses = [(await door.call("POST", "/v1/poll", {}, token="w" * 64))[0] for _ in range(12)]
    assert statuses[:10] == [401] * 10
    assert statuses[-1] == 429


async def test_wrong_tokens_do_not_slow_down_right_ones_from_the_same_address(door: Door) -> None:
    token = await door.join()
    for _ in range(15):
        await door.call("POST", "/v1/poll", {}, token="w" * 64)
    assert (await door.call("POST", "/v1/poll", {"hold_s": 0}, token=token))[0] == 200
    assert (await door.call("POST", "/v1/poll", {}, token="w" * 64))[0] == 429, "a right one forgives no wrong one"


async def test_a_join_token_does_not_poll(door: Door) -> None:
    await door.join()
    assert (await door.call("POST", "/v1/poll", {}))[0] == 401


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/poll", {"hold_s": 0}), ("/v1/munge", {"credential": credential(KEY)})]
)
async def test_the_first_use_of_the_node_token_closes_the_join_token(
    door: Door, path: str, body: dict[str, Any]
) -> None:
    token = await door.join()
    assert (await door.call("POST", path, body, token))[0] == 200
    for method, path_ in (("POST", "/v1/join"), ("GET", "/v1/needs"), ("GET", "/v1/agent")):
        status, answer = await door.call(method, path_, {"facts": FACTS} if method == "POST" else None)
        assert (status, answer["code"], answer["fatal"]) == (403, "ticket_closed", True), path_
    assert {error.code for error in door.handlers.refused} == {"ticket_closed"}


async def test_a_node_token_joins_again_and_is_sent_the_munge_key_only_when_it_has_another(door: Door) -> None:
    token = await door.join()
    has_it = {"facts": FACTS, "munge_key": hashlib.sha256(KEY).hexdigest()[:16]}
    status, answer = await door.call("POST", "/v1/join", has_it, token)
    assert (status, answer["munge_key_b64"], answer["node_token"]) == (200, None, token)
    status, answer = await door.call("POST", "/v1/join", {**has_it, "munge_key": "0" * 16}, token)
    assert (status, base64.b64decode(answer["munge_key_b64"])) == (200, KEY)


async def test_a_machine_that_was_found_again_is_asked_to_join_again(door: Door) -> None:
    token = await door.join()
    door.handlers.lose_journal()
    status, answer = await door.call("POST", "/v1/poll", {"hold_s": 0}, token)
    assert (status, answer["code"]) == (401, "rejoin")
    own = door.handlers.peers["127.0.0.1"]
    door.handlers.peers["127.0.0.1"] = replace(own, hostname="mesh-h100-2-zzzzzz")
    status, answer = await door.call("POST", "/v1/join", {"facts": FACTS}, token)
    assert (status, answer["code"]) == (403, "other_machine")
    door.handlers.peers["127.0.0.1"] = own
    assert (await door.call("POST", "/v1/join", {"facts": FACTS}, token))[0] == 200
    assert (await door.call("POST", "/v1/poll", {"hold_s": 0}, token))[0] == 200


async def test_the_agent_is_served_to_both_kinds_of_token(door: Door) -> None:
    node_token = await door.join()
    for token in (door.join_token.get_secret_value(), node_token):
        headers = {"Authorization": f"Bearer {token}"}
        async with door.call.session.get(f"{door.call.base}/v1/agent", headers=headers) as answer:
            assert answer.status == 200
            assert await answer.read() == agent_zipapp()
    assert (await door.call("GET", "/v1/agent", token="w" * 64))[0] == 401


async def test_munge_both_ways_and_not(door: Door) -> None:
    token = await door.join()
    status, answer = await door.call("POST", "/v1/munge", {"credential": credential(KEY)}, token)
    assert (status, answer) == (200, {"decoded": True, "credential": credential(KEY)})
    status, answer = await door.call("POST", "/v1/munge", {"credential": credential(OTHER_KEY)}, token)
    assert status == 409
    assert "same munge key" in answer["reason"]


async def test_a_poll_is_held_and_answered_at_once_when_there_is_something(door: Door) -> None:
    token = await door.join()
    started = time.monotonic()
    assert await door.call("POST", "/v1/poll", {}, token) == (200, {"commands": []})
    assert 0.2 < time.monotonic() - started < 20
    queued = door.handlers.queue.put("auth_key", {"key": SecretStr("tskey-x")})
    status, answer = await door.call("POST", "/v1/poll", {"hold_s": 30}, token)
    assert status == 200
    assert answer["commands"] == [{"id": queued, "verb": "auth_key", "args": {"key": "tskey-x"}}]


async def test_bodies_that_cannot_be_used_are_not_echoed(door: Door) -> None:
    bad = {**FACTS, "gpus": [{**FACTS["gpus"][0], "device": "/dev/sda; SECRETWORD"}]}
    status, answer = await door.call("POST", "/v1/join", {"facts": bad})
    assert status == 400
    assert "facts.gpus.0.device" in answer["reason"]
    assert "SECRETWORD" not in str(answer)
    status, answer = await door.call("POST", "/v1/join", {"facts": {**FACTS, "slurmd_version": "24\nNodeName=x"}})
    assert status == 400


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({}, 200),
        ({"systemd": False, "tun": True, "firewall": False}, 200),
        ({"systemd": "no"}, 400),
        ({"tun": 0}, 400),
        ({"firewall": ""}, 400),
    ],
)
async def test_a_machine_tells_what_kind_it_is(door: Door, told: dict[str, Any], status: int) -> None:
    body = {"facts": {**FACTS, **told}}
    assert (await door.call("POST", "/v1/join", body, door.join_token.get_secret_value()))[0] == status
    if status == 200:
        facts = door.handlers.facts
        assert facts is not None
        assert {name: getattr(facts, name) for name in told} == told
        assert told or (facts.systemd, facts.tun, facts.firewall) == (None, None, None)


async def test_limits_and_unknown_routes(door: Door) -> None:
    token = await door.join()
    headers = {"Authorization": f"Bearer {token}"}
    body = io.BytesIO(b"x" * 5_000_000)
    async with door.call.session.post(f"{door.call.base}/v1/poll", data=body, headers=headers) as answer:
        assert answer.status == 413
    assert (await door.call("GET", "/v1/nothing"))[0] == 404
    assert (await door.call("GET", "/v1/join"))[0] == 405


async def test_a_tailnet_that_cannot_be_asked_is_told_as_such(door: Door) -> None:
    door.handlers.failure = TailnetError("tailscaled does not answer")
    status, answer = await door.call("POST", "/v1/join", {"facts": FACTS})
    assert status == 503
    assert answer["fatal"] is False


async def test_a_fault_in_a_handler_shows_nothing(door: Door) -> None:
    door.handlers.failure = RuntimeError("SECRETWORD")
    status, answer = await door.call("POST", "/v1/join", {"facts": FACTS})
    assert status == 500
    assert "SECRETWORD" not in str(answer)


async def test_a_call_on_a_dead_connection_is_cut_and_made_on_a_new_one() -> None:
    """A machine that gets another address need not wait until its held poll times out."""
    seen: list[str] = []
    held = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        port = str(request.transport.get_extra_info("peername")[1]) if request.transport else ""
        seen.append(port)
        if len(seen) == 2:
            held.set()
            await asyncio.Event().wait()
        return web.json_response({"unix": 1.0})

    app = web.Application()
    app.router.add_get("/v1/time", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    link = HeadLink(["127.0.0.1"], runner.addresses[0][1])
    await asyncio.to_thread(link.call, "GET", "/v1/time")
    waits = asyncio.create_task(asyncio.to_thread(link.call, "GET", "/v1/time", timeout_s=60.0))
    await held.wait()
    link.cut()
    async with asyncio.timeout(30):
        assert await waits == {"unix": 1.0}
    assert seen[0] == seen[1] != seen[2]
    link.close()
    link.cut()
    await runner.cleanup()
