"""Who may look at the web page, by real tailscaled: a control server with a policy says who is who."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from meshd.api.faults import Denied
from meshd.api.web.server import PROXIES
from meshd.api.web.visitors import Visitors
from meshd.errors import TailnetError
from meshd.tailnet.localapi import LocalApi
from meshd.tailnet.status import Identity
from tests.clocks import HandClock
from tests.integration.tailnet_lab import TailnetLab, tailnet_lab
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

CAP = "example.com/cap/meshd"
GROUPS = {"group:eng": ["ann@example.com"], "group:ops": ["ann@example.com", "bob@example.com"]}


async def _joins(lab: TailnetLab, name: str, *, owner: str = "", tags: tuple[str, ...] = ()) -> None:
    """A device of a user, or one with tags."""
    create = {"reusable": False, "preauthorized": True, "tags": list(tags)}
    made = await lab.api("POST", f"tailnet/-/keys?owner={owner}", {"capabilities": {"devices": {"create": create}}})
    lab.auth_key = made["key"]
    await lab.join(name)


async def test_the_policy_of_the_tailnet_decides_who_may_look() -> None:
    """Ann and Bob have a device each, CI has one with a tag. The policy grants some of them something on the head."""
    with TemporaryDirectory(prefix="wv") as folder:
        async with tailnet_lab(Path(folder)) as lab:
            await _joins(lab, "head", tags=("tag:head",))
            await _joins(lab, "anns", owner="ann@example.com")
            await _joins(lab, "bobs", owner="bob@example.com")
            await _joins(lab, "runner", tags=("tag:ci",))
            peers = (await lab.status("head"))["Peer"].values()
            at = {peer["HostName"]: peer["TailscaleIPs"][0] for peer in peers}
            api = LocalApi(lab.socket_of("head"))
            allow: list[str] = []
            clock = HandClock()
            visitors = Visitors(api, lambda: allow, lambda _: False, clock)

            async def who(name: str) -> Identity:
                return await api.identity(at[name])

            async def may(name: str, *entries: str) -> bool:
                clock.t_s += 60  # what tailscaled said a while ago counts no more
                allow[:] = entries
                try:
                    await visitors.admit(at[name])
                except Denied:
                    return False
                return True

            async def policy(**parts: object) -> None:
                await lab.api("POST", "tailnet/-/acl", {"groups": GROUPS, **parts})

            try:
                plain = await who("anns")
                assert (plain.login, plain.tags, plain.groups, plain.capabilities) == ("ann@example.com", (), (), ())
                assert await may("anns", "ann@example.com") and await may("anns", "*@example.com")
                assert not await may("anns", "group:eng", CAP, "bob@example.com")
                assert not await may("runner", "user@example.net", "*@example.net"), "a tag is nobody's"
                assert await may("runner", "tag:ci")

                for behind_a_router in ("192.168.1.5", "127.0.0.1", "100.64.77.77"):
                    with pytest.raises(TailnetError):
                        await api.identity(behind_a_router)

                grant = {"src": ["group:eng", "tag:ci"], "dst": ["tag:head"], "app": {CAP: [{"role": "looks"}]}}
                elsewhere = {"src": ["bob@example.com"], "dst": ["tag:ci"], "app": {CAP: [{}]}}
                await policy(grants=[grant, elsewhere])
                await until(lambda: may("anns", CAP), bool, "the head knows of the grant")
                assert (await who("anns")).capabilities == (CAP,)
                assert await may("runner", CAP)
                assert not await may("bobs", CAP), "what is granted on another device counts for nothing here"
                assert not await may("anns", "group:eng"), "the head is told of no group without the node attribute"

                told = {"target": ["tag:head"], "app": {"tailscale.com/visible-groups": [{"groups": ["group:eng"]}]}}
                await policy(nodeAttrs=[told])
                await until(lambda: may("anns", "group:eng"), bool, "the head knows of the group")
                assert (await who("anns")).groups == ("group:eng",), "only the groups that the attribute names"
                assert not await may("bobs", "group:eng") and not await may("anns", "group:ops")
                assert not await may("anns", CAP), "the grant is gone"

                await policy()
                await until(lambda: may("anns", "group:eng"), lambda seen: not seen, "the group is gone")
            finally:
                await api.aclose()


async def test_tailscale_serve_says_that_it_asks_for_another() -> None:
    """What a proxy asks comes from the head's own address: the page refuses it by one of these headers."""
    with TemporaryDirectory(prefix="wv") as folder:
        async with tailnet_lab(Path(folder)) as lab:
            await _joins(lab, "head", tags=("tag:head",))
            await _joins(lab, "anns", owner="ann@example.com")
            asked: list[bytes] = []

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
                writer.close()

            listening = await lab.listening()
            port = listening.getsockname()[1]
            async with await asyncio.start_server(serve, sock=listening):
                await lab.tailscale("head", "serve", "--bg", "--http=8081", f"http://127.0.0.1:{port}")
                request = b"GET / HTTP/1.1\r\nHost: head\r\nConnection: close\r\n\r\n"

                async def said() -> bytes:
                    return (await lab.netcat("anns", "head", 8081, request)).encode()

                await until(said, lambda seen: seen.startswith(b"HTTP/1.1 200"), "the head's tailscaled serves")
            names = {line.partition(b":")[0].decode().lower() for line in asked[-1].split(b"\r\n")[1:] if line}
            assert names & {name.lower() for name in PROXIES}, names
            assert {"x-forwarded-for", "tailscale-user-login"} <= names
