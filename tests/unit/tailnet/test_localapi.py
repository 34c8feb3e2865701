from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from meshd.errors import TailnetError
from meshd.tailnet.localapi import BUS_MASK, PRIME_S, LocalApi


@pytest.fixture
async def api(tailscaled: Any) -> AsyncIterator[LocalApi]:
    api = LocalApi(tailscaled.socket, timeout_s=60)
    yield api
    await api.aclose()


async def test_status_and_whois(api: LocalApi, tailscaled: Any, recording: Callable[[str], str]) -> None:
    assert (await api.status()).self_tailnet_ip == "100.64.0.1"
    assert tailscaled.hosts == ["local-tailscaled.sock"]
    tailscaled.answers["whois"] = (200, recording("whois.json"))
    assert (await api.whois("100.64.0.2:6818")).id == "nMINI00002"
    who = await api.identity("100.64.0.2")
    assert (who.device_id, who.tags, who.login) == ("nMINI00002", ("tag:gpu",), ""), "a device with tags is nobody's"
    assert "100.64.0.2" in who.addresses
    tailscaled.answers["prefs"] = (200, recording("prefs.json"))
    assert (await api.prefs())["Hostname"] == "gpu-a"


async def test_pings(api: LocalApi, tailscaled: Any, recording: Callable[[str], str]) -> None:
    tailscaled.answers["ping"] = (200, recording("ping-disco.json"))
    pong = await api.ping("100.64.0.2")
    assert pong.direct and pong.path == "direct 10.78.0.3:41641" and 0 < pong.latency_s < 1
    tailscaled.answers["ping"] = (200, recording("ping-TSMP.json"))
    assert (await api.ping("100.64.0.2", "TSMP")).path == ""
    relayed = json.loads(recording("ping-disco.json")) | {"Endpoint": "", "DERPRegionID": 4, "DERPRegionCode": "fra"}
    tailscaled.answers["ping"] = (200, json.dumps(relayed))
    pong = await api.ping("100.64.0.2")
    assert pong.path == "relay fra" and not pong.direct
    tailscaled.answers["ping"] = (200, recording("ping-unknown.json"))
    with pytest.raises(TailnetError, match="no matching peer"):
        await api.ping("100.99.9.9")


async def test_a_refusal_says_what_to_do(api: LocalApi, tailscaled: Any) -> None:
    tailscaled.answers["prefs"] = (403, "prefs access denied")
    with pytest.raises(TailnetError, match="--operator"):
        await api.prefs()
    with pytest.raises(TailnetError, match="404"):
        await api.whois("100.99.9.9")


async def test_no_tailscaled(tmp_path: Path) -> None:
    api = LocalApi(tmp_path / "none.sock")
    with pytest.raises(TailnetError, match="systemctl start tailscaled"):
        await api.status()
    with pytest.raises(TailnetError, match="systemctl start tailscaled"):
        async for _ in api.watch():
            pass
    await api.aclose()


@pytest.fixture
async def silent(tmp_path: Path) -> AsyncIterator[Path]:
    """The socket of a tailscaled that takes questions and answers none."""
    open_now: set[asyncio.Event] = set()

    async def listen_and_say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(ended := asyncio.Event())
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_unix_server(listen_and_say_nothing, path=tmp_path / "s.sock")
    yield tmp_path / "s.sock"
    server.close()
    for ended in open_now:
        await ended.wait()


async def test_a_silent_tailscaled(silent: Path) -> None:
    api = LocalApi(silent, timeout_s=0.05)
    with pytest.raises(TailnetError):
        await api.status()
    with pytest.raises(TailnetError):
        async for _ in api.watch():
            pass
    await api.aclose()


async def test_priming_a_session_is_over_soon(silent: Path) -> None:
    """A node that is away must not hold up who primes it."""
    api = LocalApi(silent, timeout_s=60)
    with pytest.raises(TailnetError, match=f"{PRIME_S:g} s"):
        await api.prime_session("100.64.0.2")
    await api.aclose()


async def test_the_bus_outlives_the_deadline_and_ends_with_the_connection(tailscaled: Any) -> None:
    api, seen = LocalApi(tailscaled.socket, timeout_s=0.5), []
    async with aclosing(api.watch()) as bus:
        async for delta in bus:
            seen.append(delta)
            if len(seen) == 1:
                assert delta.status is not None
                await asyncio.sleep(0.7)
                tailscaled.say(PeersRemoved=[2])
            else:
                tailscaled.hang_up()
    assert tailscaled.masks == [str(BUS_MASK)] == ["53378"]
    assert seen[1].removed == (2,)
    await api.aclose()


async def test_a_first_message_of_ten_thousand_peers(tailscaled: Any) -> None:
    api = LocalApi(tailscaled.socket, timeout_s=30)
    entry = next(iter(tailscaled.status["Peer"].values()))
    tailscaled.status["Peer"] = {str(n): entry | {"ID": f"n{n}", "NodeID": n} for n in range(1, 10_001)}
    async with aclosing(api.watch()) as bus:
        first = await anext(bus)
    assert first.status is not None and len(first.status.peers) == 10_000
    await api.aclose()
