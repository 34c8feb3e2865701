"""The tailnet package against real tailscaled and a real control server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pydantic import SecretStr

from meshd.errors import TailnetError
from meshd.model.observed import Fresh, TailnetPeer, TailnetView, Unavailable
from meshd.runtime.clock import SystemClock
from meshd.runtime.run import run
from meshd.tailnet.admin import TailscaleAdmin
from meshd.tailnet.adminhttp import AdminHttp, ApiToken, OAuthClient
from meshd.tailnet.cli import TailscaleCli
from meshd.tailnet.deltas import apply
from meshd.tailnet.keys import AuthKeys, KeyFile, Minter
from meshd.tailnet.keystore import KeyStore
from meshd.tailnet.localapi import LocalApi
from meshd.tailnet.status import TailnetTable
from meshd.tailnet.watcher import TailnetWatcher
from tests.integration import tailnet_lab
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def _measured(text: str) -> None:
    sys.stderr.write(f"{text}\n")


@pytest.fixture
async def lab() -> AsyncIterator[Any]:
    with TemporaryDirectory(prefix="tg") as folder:
        async with tailnet_lab.tailnet_lab(Path(folder)) as lab:
            yield lab


@pytest.fixture
async def admin(lab: Any) -> AsyncIterator[TailscaleAdmin]:
    admin = TailscaleAdmin(AdminHttp(lab.api_url, ApiToken(SecretStr(tailnet_lab.API_TOKEN)), SystemClock()))
    yield admin
    await admin.aclose()


class Told(list[tuple[float, dict[str, bool]]]):
    """When somebody was told of peers, and which of them were online then, by hostname."""

    def add(self, table: TailnetTable | TailnetView | None) -> None:
        peers = table.peers.values() if table else ()
        self.append((time.monotonic(), {peer.hostname: peer.online for peer in peers}))

    def first(self, hostname: str, *, online: bool, after: float) -> float | None:
        """When it was first told so; None when it was not yet."""
        return next((at for at, seen in self if at >= after and seen.get(hostname) is online), None)


class Watching:
    """A watcher of one tailscaled, and of what it woke somebody."""

    def __init__(self, lab: Any, name: str) -> None:
        self.api = LocalApi(lab.socket_of(name))
        self.woken = Told()
        self.bus = Told()
        self.watcher = TailnetWatcher(self.api, SystemClock())
        self.watcher.on_change(lambda: self.woken.add(self.view()))

    async def second_reader(self) -> None:
        """A reader that does nothing else, for the time at which the bus spoke."""
        second = LocalApi(self.api._socket)
        table: TailnetTable | None = None
        try:
            async for delta in second.watch():
                before = delta.status or table
                assert before is not None, "the first message has the whole status"
                table, _ = apply(before, delta)
                self.bus.add(table)
        except TailnetError:  # tailscaled was stopped
            pass
        finally:
            await second.aclose()

    def view(self) -> TailnetView | None:
        return self.watcher.current.value if isinstance(self.watcher.current, Fresh) else None

    def peer(self, hostname: str) -> TailnetPeer | None:
        view = self.view()
        return view.by_hostname(hostname) if view else None

    async def until(self, condition: Callable[[], bool]) -> float:
        async def look() -> Fresh[TailnetView] | Unavailable:
            return self.watcher.current

        await until(look, lambda _: condition(), "the watcher tells it", every_s=0.002)
        return time.monotonic()


@asynccontextmanager
async def watch(lab: Any, name: str) -> AsyncIterator[Watching]:
    """A watcher at work."""
    watching = Watching(lab, name)
    tasks = [asyncio.create_task(watching.watcher.run()), asyncio.create_task(watching.second_reader())]
    try:
        yield watching
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await watching.api.aclose()
    faults = [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)]
    assert not faults, faults


def _online(watching: Watching, hostname: str, wanted: bool) -> Callable[[], bool]:
    def check() -> bool:
        peer = watching.peer(hostname)
        return peer is not None and peer.online is wanted

    return check


async def test_peers_come_die_return_and_are_removed(lab: Any, admin: TailscaleAdmin) -> None:
    await lab.join("head")
    async with watch(lab, "head") as watching:
        await watching.until(lambda: watching.view() is not None)
        assert watching.peer("gpu-a") is None

        await lab.join("gpu-a")
        await watching.until(_online(watching, "gpu-a", True))
        first = watching.peer("gpu-a")
        assert first is not None and first.tags == ("tag:gpu",) and first.tailnet_ip.startswith("100.64.")

        killed = lab.kill("gpu-a")

        async def told() -> tuple[float | None, float | None]:
            logs = (watching.bus, watching.woken)
            bus, woken = (log.first("gpu-a", online=False, after=killed) for log in logs)
            return bus, woken

        bus, woken = await until(told, lambda at: None not in at, "bus and watcher tell that it is offline")
        assert bus is not None and woken is not None
        lag_s = woken - bus
        _measured(f"kill -9 to wake {1000 * (woken - killed):.1f} ms; bus to wake {1000 * lag_s:.2f} ms")
        assert lag_s < 1, "a delta wakes at once; tests/bench/change.py holds it to milliseconds"

        began = time.monotonic()
        lab.start("gpu-a")
        back = await watching.until(_online(watching, "gpu-a", True))
        _measured(f"restart to view {1000 * (back - began):.1f} ms")
        again = watching.peer("gpu-a")
        assert again is not None and (again.id, again.tailnet_ip) == (first.id, first.tailnet_ip)

        began = time.monotonic()
        await admin.delete_device(first.id)
        gone = await watching.until(lambda: watching.peer("gpu-a") is None)
        _measured(f"delete to view {1000 * (gone - began):.1f} ms")

        async def both() -> tuple[dict[str, TailnetPeer], dict[str, TailnetPeer]]:
            view = watching.view()
            assert view is not None
            return dict(view.peers), dict((await watching.api.status()).view().peers)

        await until(both, lambda seen: seen[0] == seen[1] == {}, "watched and asked view are the same")


async def test_a_restarted_tailscaled_is_an_outage_and_then_a_whole_view(lab: Any) -> None:
    await lab.join("head")
    await lab.join("gpu-a")
    async with watch(lab, "head") as watching:
        await watching.until(_online(watching, "gpu-a", True))
        killed = lab.kill("head", signal.SIGTERM)
        lost = await watching.until(lambda: isinstance(watching.watcher.current, Unavailable))
        _measured(f"tailscaled stopped to Unavailable {1000 * (lost - killed):.1f} ms")
        await lab.join("gpu-b")
        began = time.monotonic()
        lab.start("head")
        await watching.until(_online(watching, "gpu-b", True))
        back = await watching.until(lambda: (view := watching.view()) is not None and view.healthy)
        _measured(f"tailscaled started to a healthy view {1000 * (back - began):.1f} ms")


async def test_a_dead_key_on_a_valid_node_is_seen(lab: Any) -> None:
    await lab.join("head")
    async with watch(lab, "head") as watching:
        await watching.until(lambda: (view := watching.view()) is not None and view.healthy)
        began = time.monotonic()
        await lab.up_refused(
            "head",
            f"--login-server=http://{tailnet_lab.ADDRESS}:8080",
            "--auth-key=tskey-auth-dead",
            "--hostname=head",
            "--accept-dns=false",
            "--timeout=30s",
        )
        seen = await watching.until(lambda: (view := watching.view()) is not None and not view.healthy)
        _measured(f"`up` with a dead key to an unhealthy view {1000 * (seen - began):.1f} ms")
        await watching.until(
            lambda: (view := watching.view()) is not None and any("login error" in text for text in view.problems)
        )


async def test_localapi_and_cli_tell_the_same(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.join("head")
    await lab.join("gpu-a")
    monkeypatch.setenv("PATH", f"{lab.folder / 'bin'}:{os.environ['PATH']}")
    cli, api = TailscaleCli(run, lab.socket_of("head")), LocalApi(lab.socket_of("head"))

    async def look() -> TailnetPeer | None:
        return (await cli.status()).by_hostname("gpu-a")

    peer = await until(look, lambda seen: seen is not None and seen.online, "gpu-a is online")
    assert peer is not None
    assert await cli.ip4() == (await api.status()).self_tailnet_ip
    assert (await cli.version()).count(".") == 2
    pong = await lab.pong("head", peer.tailnet_ip)
    assert pong.path.startswith(("direct 10.78.0.1:", "relay "))
    assert 0 < pong.latency_s < tailnet_lab.PONG_S
    assert (await lab.pong("head", peer.tailnet_ip, "TSMP")).path == ""

    async def same() -> list[TailnetPeer | None]:
        asked = [await look(), await cli.whois(peer.tailnet_ip), await api.whois(f"{peer.tailnet_ip}:22")]
        return [replace(one, path="") if one else None for one in asked]

    await until(same, lambda seen: seen[0] is not None and seen == [seen[0]] * 3, "status and whois tell the same")
    with pytest.raises(TailnetError, match="no such device"):
        await cli.whois("100.99.99.99")
    with pytest.raises(TailnetError, match="404"):
        await api.whois("100.99.99.99")
    tagged = await api.identity(peer.tailnet_ip)
    assert (tagged.device_id, tagged.hostname, tagged.tags, tagged.login) == (peer.id, "gpu-a", ("tag:gpu",), "")
    key = {"capabilities": {"devices": {"create": {"reusable": True, "preauthorized": True}}}}
    lab.auth_key = (await lab.api("POST", "tailnet/-/keys", key))["key"]
    await lab.join("laptop")

    async def owned() -> TailnetPeer | None:
        return (await cli.status()).by_hostname("laptop")

    laptop = await until(owned, lambda seen: seen is not None and seen.online, "the laptop is online")
    assert laptop is not None
    owner = await api.identity(laptop.tailnet_ip)
    assert (owner.login, owner.tags) == ("user@example.net", ()) and laptop.tailnet_ip in owner.addresses
    assert (await api.prefs())["Hostname"] == "head"
    await api.aclose()


async def test_the_admin_api(lab: Any, admin: TailscaleAdmin, tmp_path: Path) -> None:
    oauth = AdminHttp(lab.api_url, OAuthClient("any", SecretStr("any")), SystemClock())
    minter = Minter(TailscaleAdmin(oauth), tags=["tag:gpu"], cluster="lab", clock=SystemClock())
    keys = AuthKeys(KeyStore(tmp_path), KeyFile(None), minter, SystemClock())
    lab.auth_key = (await keys.current()).get_secret_value()
    assert (await keys.current()).get_secret_value() == lab.auth_key
    await oauth.aclose()
    await lab.join("gpu-a")
    (device,) = await until(
        admin.list_devices, lambda seen: all(one.last_seen is None for one in seen), "gpu-a is connected"
    )
    assert (device.hostname, device.tags) == ("gpu-a", ("tag:gpu",))

    minted = [key for key in await admin.list_keys() if key.description == "meshd lab"]
    assert len(minted) == 1 and minted[0].valid and minted[0].reusable and minted[0].secret is None
    await admin.revoke_key(minted[0].id)
    await admin.revoke_key(minted[0].id)
    found = await admin.get_key(minted[0].id)
    assert found is None or not found.valid
    assert await admin.get_key("kNONE") is None

    await admin.delete_device(device.id)
    await admin.delete_device(device.id)
    assert await admin.list_devices() == ()

    stranger = TailscaleAdmin(AdminHttp(lab.api_url, ApiToken(SecretStr("tskey-api-wrong")), SystemClock()))
    with pytest.raises(TailnetError, match="expired or revoked"):
        await stranger.list_devices()
    await stranger.aclose()
