"""headscale's API v1 in both forms of its keys, against a server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr

from meshd.errors import TailnetError, TailnetRefused
from meshd.tailnet.adminhttp import AdminHttp, ApiToken
from meshd.tailnet.headscale import HeadscaleAdmin
from meshd.tailnet.keys import Minter

TOKEN = "hskey-api-test"


@dataclass
class FakeHeadscale:
    """As proto/headscale/v1 says; `new` is the form of 0.28 and later."""

    clock: Any
    new: bool
    keys: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    lose_answer: bool = False

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._auth])
        app.router.add_post("/api/v1/preauthkey", self._create)
        app.router.add_get("/api/v1/preauthkey", self._list)
        app.router.add_post("/api/v1/preauthkey/expire", self._expire)
        app.router.add_get("/api/v1/user", self._users)
        app.router.add_get("/api/v1/node", self._nodes)
        app.router.add_delete("/api/v1/node/{id}", self._delete)
        return app

    @web.middleware
    async def _auth(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401, text="Unauthorized")
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not self.new and body.get("user") != "7":
            return web.json_response({"code": 2, "message": "user not found", "details": []}, status=500)
        number = str(len(self.keys) + 1)
        secret = f"hskey-auth-pre{number}-secret" if self.new else f"{number}" * 48
        key = {
            "user": {"id": "7", "name": "gpu"}, "id": number, "key": secret, "reusable": body["reusable"],
            "ephemeral": body["ephemeral"], "used": False, "expiration": body["expiration"],
            "createdAt": self.clock.now().isoformat().replace("+00:00", "Z"), "aclTags": body["aclTags"],
        }  # fmt: skip
        self.keys.append(key)
        if self.lose_answer:
            self.lose_answer = False
            return web.Response(status=502)
        return web.json_response({"preAuthKey": key})

    async def _list(self, request: web.Request) -> web.Response:
        if not self.new and request.query.get("user") != "7":
            return web.json_response({"code": 3, "message": "user required", "details": []}, status=400)
        shown = [{**key, "key": f"hskey-auth-pre{key['id']}-***" if self.new else key["key"]} for key in self.keys]
        return web.json_response({"preAuthKeys": shown} if shown else {})

    async def _expire(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = "id" if self.new else "key"
        found = [key for key in self.keys if key[name] == body.get(name)]
        if not found or (not self.new and body.get("user") != "7"):
            return web.json_response({"code": 5, "message": "AuthKey not found", "details": []}, status=500)
        found[0]["expiration"] = self.clock.now().isoformat().replace("+00:00", "Z")
        return web.json_response({})

    async def _users(self, request: web.Request) -> web.Response:
        users = [{"id": "7", "name": "gpu"}] if request.query.get("name") == "gpu" else []
        return web.json_response({"users": users})

    async def _nodes(self, _request: web.Request) -> web.Response:
        return web.json_response({"nodes": self.nodes})

    async def _delete(self, request: web.Request) -> web.Response:
        found = [node for node in self.nodes if node["id"] == request.match_info["id"]]
        if not found:
            return web.json_response({"code": 5, "message": "node not found", "details": []}, status=404)
        self.nodes.remove(found[0])
        return web.json_response({})


@pytest.fixture(params=[True, False], ids=["0.28", "0.27"])
async def server(request: pytest.FixtureRequest, clock: Any) -> FakeHeadscale:
    return FakeHeadscale(clock, request.param)


@pytest.fixture
async def admin(server: FakeHeadscale, clock: Any) -> AsyncIterator[HeadscaleAdmin]:
    runner = web.AppRunner(server.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    admin = HeadscaleAdmin(AdminHttp(url, ApiToken(SecretStr(TOKEN)), clock), clock, user="" if server.new else "gpu")
    yield admin
    await admin.aclose()
    await runner.cleanup()


async def test_a_key_from_its_birth_to_its_end(admin: HeadscaleAdmin, server: FakeHeadscale, clock: Any) -> None:
    made = await admin.mint_key(tags=("tag:gpu",), lifetime_s=3600, description="meshd lab r1")
    assert made.secret is not None and made.valid and made.reusable and made.tags == ("tag:gpu",)
    assert made.expires is not None and abs(made.expires - clock.now() - timedelta(hours=1)) < timedelta(seconds=2)
    assert datetime.fromisoformat(server.keys[0]["expiration"]).microsecond != 0
    found = await admin.get_key(made.id)
    assert found is not None and found.valid and found.secret is None
    assert [key.id for key in await admin.keys_with("meshd lab r1")] == [made.id]
    assert await admin.keys_with("meshd lab r2") == ()
    await admin.revoke_key(made.id)
    await clock.sleep(1)
    await admin.revoke_key(made.id)
    await admin.revoke_key("99")
    found = await admin.get_key(made.id)
    assert found is not None and not found.valid and await admin.get_key("99") is None
    assert await admin.keys_with("meshd lab r1") == ()


async def test_a_key_whose_answer_was_lost_is_found_and_expired(
    admin: HeadscaleAdmin, server: FakeHeadscale, clock: Any
) -> None:
    minter = Minter(admin, tags=("tag:gpu",), cluster="lab", clock=clock)
    await admin.mint_key(tags=("tag:gpu",), lifetime_s=3600, description="somebody else's")
    server.lose_answer = True
    with pytest.raises(TailnetError):
        await minter.next("r1", None, ("tag:gpu",))
    await clock.sleep(1)
    made = await minter.next("r1", None, ("tag:gpu",))
    await clock.sleep(1)
    living = [entry["id"] for entry in server.keys if datetime.fromisoformat(entry["expiration"]) > clock.now()]
    assert living == ["1", made.id] and made.id == "3"


async def test_a_key_for_one_use_and_what_is_surely_another_is_left_alone(
    admin: HeadscaleAdmin, server: FakeHeadscale, clock: Any
) -> None:
    """headscale keeps a mark of a description: two may have the same."""
    minter = Minter(admin, tags=("tag:gpu",), cluster="lab", clock=clock)
    made = await minter.single("meshd launch lab-h100-1-abcde1", ("tag:gpu",), 3600)
    assert server.keys[0]["reusable"] is False
    assert made.expires is not None and abs(made.expires - clock.now() - timedelta(hours=1)) < timedelta(seconds=2)
    twin = await minter.single("meshd launch lab-h100-1-abcde1", ("tag:gpu",), 3600)
    await admin.mint_key(tags=("tag:gpu",), lifetime_s=3600, description="meshd launch lab-h100-1-abcde1")
    await minter.revoke_described("meshd launch lab-h100-1-abcde1", but={made.id}, single=True)
    await clock.sleep(1)
    living = [entry["id"] for entry in server.keys if datetime.fromisoformat(entry["expiration"]) > clock.now()]
    assert living == [made.id, "3"] and twin.id == "2"


async def test_nodes(admin: HeadscaleAdmin, server: FakeHeadscale) -> None:
    server.nodes.append(
        {
            "id": "4", "name": "lab-h100-1-abc", "givenName": "h100-1", "ipAddresses": ["100.64.0.4", "fd7a::4"],
            "online": True, "tags": ["tag:gpu"], "createdAt": "2026-11-01T00:00:00Z", "nodeKey": "nodekey:1",
            "preAuthKey": {"ephemeral": True}, "expiry": None,
        }
    )  # fmt: skip
    (device,) = await admin.list_devices()
    assert (device.id, device.tailnet_ip, device.tags, device.ephemeral) == ("4", "100.64.0.4", ("tag:gpu",), True)
    with pytest.raises(TailnetRefused, match=r"node.expiry: 0"):
        await admin.disable_key_expiry("4")
    with pytest.raises(TailnetRefused):
        await admin.set_address("4", "100.64.0.3")
    await admin.delete_device("4")
    await admin.delete_device("4")
    assert await admin.list_devices() == ()


async def test_a_wrong_token_and_a_wrong_user(server: FakeHeadscale, admin: HeadscaleAdmin, clock: Any) -> None:
    url = admin._http._base_url
    stranger = HeadscaleAdmin(AdminHttp(url, ApiToken(SecretStr("hskey-api-no")), clock), clock)
    with pytest.raises(TailnetRefused):
        await stranger.list_devices()
    await stranger.aclose()
    nobody = HeadscaleAdmin(AdminHttp(url, ApiToken(SecretStr(TOKEN)), clock), clock, user="nobody")
    with pytest.raises(TailnetRefused, match="nobody"):
        await nobody.mint_key(tags=(), lifetime_s=60, description="x")
    await nobody.aclose()
