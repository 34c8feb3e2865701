"""The auth key rotates over a few hundred nodes: how long it takes, and what it costs the head.

The head's parts run in this process: journal, rotation, node desk and node API. The agents are hollow and run in
another process; each holds a long poll over loopback from an address of its own. The control server's API, the canary
and the head's view of the tailnet are stand-ins that answer at once; a new login takes 0.15 s, as with real tailscaled.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import multiprocessing
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import aiohttp
import structlog
from pydantic import SecretStr

from meshd.api.node_api import NodeApi
from meshd.config import ClusterSettings, Settings, TimingSettings
from meshd.daemon.agents import AgentQueues
from meshd.daemon.node_desk import HeadFacts, NodeDeskOfDaemon
from meshd.daemon.records import Records
from meshd.daemon.rotation.carry_out import Means
from meshd.daemon.rotation.engine import RotationEngine
from meshd.daemon.rotation.world import world_of
from meshd.daemon.tokens import MachineTokens
from meshd.model.observed import Fresh, SlurmView, TailnetPeer, TailnetView
from meshd.runtime.clock import SystemClock
from meshd.store.auth_rotations import AuthRotations
from meshd.store.journal import Journal
from meshd.tailnet.admin import AuthKey
from meshd.tailnet.canary import Proof
from meshd.tailnet.keys import Minter
from meshd.tailnet.keystore import KeptKey, KeyStore
from meshd.tailnet.rotation import Source, Stage
from meshd.tailnet.rotation_steps import World
from tests.bench import fleet
from tests.bench.report import Row, report

LOGIN_S = 0.15
TAGS = ("tag:meshd",)
TARGET_S = 60.0
"""DESIGN: over 100 nodes, without new logins."""


def source(index: int) -> str:
    """The loopback address of a node."""
    return f"127.1.{index // 250}.{index % 250 + 1}"


async def agent(index: int, port: int, token: str, first_key: str) -> None:
    """One node's agent."""
    kept = hashlib.sha256(first_key.encode()).hexdigest()
    connector = aiohttp.TCPConnector(local_addr=(source(index), 0))
    async with aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {token}"}) as session:
        results: list[dict[str, Any]] = []
        while True:
            body = {"phase": "serving", "munge_ok": True, "auth_key_sha256": kept, "results": results}
            async with session.post(f"http://127.0.0.1:{port}/v1/poll", json=body) as answer:
                answer.raise_for_status()
                commands = (await answer.json())["commands"]
            results = []
            for command in commands:
                data: dict[str, Any] = {}
                if command["verb"] == "auth_key":
                    kept = hashlib.sha256(command["args"]["key"].encode()).hexdigest()
                    data = {"sha256": kept}
                elif command["verb"] == "reauth":
                    await asyncio.sleep(LOGIN_S)
                    data = {"node_key": f"nodekey:new{index}", "address": fleet.address(index), "gap_s": LOGIN_S}
                results.append({"id": command["id"], "ok": True, "data": data})


def agents(port: int, tokens: list[str], first_key: str) -> None:
    """All of them, in a process of their own."""

    async def body() -> None:
        await asyncio.gather(*(agent(i, port, token, first_key) for i, token in enumerate(tokens, start=1)))

    asyncio.run(body())


class Control:
    """The control server's API, the canary, and who calls from where: all answer at once."""

    def __init__(self, count: int) -> None:
        self.keys: dict[str, AuthKey] = {}
        self.peers = {f"n{i}": fleet.peers(count).peers[f"n{i}"] for i in range(1, count + 1)}
        self.by_source = {source(i): self.peers[f"n{i}"] for i in range(1, count + 1)}

    async def mint_key(self, *, tags: tuple[str, ...], lifetime_s: int, description: str, **_: bool) -> AuthKey:
        number, now = f"k{len(self.keys) + 1}", datetime.now(UTC)
        end = now + timedelta(seconds=lifetime_s)
        key = AuthKey(number, description, now, end, True, True, False, True, tuple(tags))
        self.keys[number] = key
        return replace(key, secret=SecretStr(f"tskey-auth-{number}-secret"))

    async def get_key(self, key_id: str) -> AuthKey | None:
        return self.keys.get(key_id)

    async def keys_with(self, description: str) -> tuple[AuthKey, ...]:
        return ()

    async def revoke_key(self, key_id: str) -> None:
        self.keys[key_id] = replace(self.keys[key_id], valid=False)

    async def prove(self, key: SecretStr, hostname: str) -> Proof:
        return Proof(TAGS, "100.64.0.2")

    async def whois(self, address: str) -> TailnetPeer:
        return self.by_source[address]


async def measure(count: int, *, reauth: bool) -> dict[str, float]:
    """One rotation over `count` nodes."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        directory, clock, control = Path(name), SystemClock(), Control(count)
        settings = Settings(cluster=ClusterSettings(name="lab", state_dir=directory))
        journal = Journal(directory / "journal.db")
        first = await control.mint_key(tags=TAGS, lifetime_s=86400 * 60, description="first")
        assert first.secret is not None
        store = KeyStore(directory)
        store.use(KeptKey(first.secret, first.id, first.expires, TAGS, minted=True))
        in_use = store.in_use()
        assert in_use is not None
        for i in range(1, count + 1):
            journal.put(replace(fleet.ready(i), auth_key=in_use.sha256), "phase", "ready", datetime.now(UTC))
        records, queues, tokens = (
            Records(journal, clock, lambda: None),
            AgentQueues(),
            MachineTokens.at(directory / "t"),
        )
        new_keys: dict[str, str] = {}

        def world() -> World:
            peers = {p.id: replace(p, node_key=new_keys.get(p.id, "nodekey:old")) for p in control.peers.values()}
            now, key = clock.now(), store.in_use()
            return world_of(
                journal.machines(), Fresh(TailnetView("100.64.0.1", "head", True, (), peers), now),
                Fresh(SlurmView("24.11.5", {}, ()), now), in_use=key.sha256 if key else "", now=now, silent_s=60.0,
            )  # fmt: skip

        async def look() -> None:
            active = engine.active
            for machine, node in active.nodes.items() if active else ():
                if node.node_key:
                    new_keys[records.get(machine).tailnet_id] = node.node_key

        api = cast("Any", control)
        minter = Minter(api, tags=TAGS, cluster="lab", clock=clock)
        means = Means("lab", store, api, minter, control, queues, records, (), lambda: TAGS, cast("Any", Quiet()))
        engine = RotationEngine(AuthRotations(journal), means, world, clock, occasion=lambda: None, look=look)
        nothing = cast("Any", Quiet())
        desk = NodeDeskOfDaemon(
            records=records, tokens=tokens, agents=queues, whois=control, munge=nothing, rotator=nothing,
            head=HeadFacts("lab", "127.0.0.1:6817", 1, 1, 2, 2, (), 25.0), timing=TimingSettings,
            slurm_version=lambda: "24.11.5", nodes=nothing, ends_itself=lambda _: True, heard=engine.heard,
        )  # fmt: skip
        server = NodeApi(desk, poll_hold_s=settings.node_api.poll_hold_s)
        port = await server.start("127.0.0.1", 0)
        words = [tokens.node_token(fleet.name(i)).get_secret_value() for i in range(1, count + 1)]
        process = multiprocessing.get_context("spawn").Process(
            target=agents, args=(port, words, first.secret.get_secret_value())
        )
        process.start()
        try:
            async with asyncio.timeout(120):
                while not all(one.reachable for one in world().nodes.values()) or len(queues._queues) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            loop = asyncio.create_task(engine.run())
            began, cpu = time.monotonic(), time.process_time()
            engine.start(Source.MINTED, by="bench", reason="measured", reauth=reauth)
            async with asyncio.timeout(600):
                while engine.active is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            took, spent = time.monotonic() - began, time.process_time() - cpu
            assert engine.last is not None and engine.last.stage is Stage.DONE and len(engine.last.nodes) == count
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
        finally:
            process.kill()
            process.join()
            await server.stop()
            journal.close()
        return {"seconds": took, "cpu_s": spent}


class Quiet:
    """Parts of the desk that no rotation of the auth key needs."""

    def heard(self, machine: str, report: object) -> None:
        """What the munge rotation would hear."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    plain = asyncio.run(measure(arguments.nodes, reauth=False))
    logins = asyncio.run(measure(arguments.nodes, reauth=True))
    rows = [
        Row(f"{arguments.nodes} nodes: mint to revoked", plain["seconds"], "s", TARGET_S),
        Row("the head's CPU for it", plain["cpu_s"], "s"),
        Row("the same with new logins", logins["seconds"], "s"),
        Row("the head's CPU for it, logins included", logins["cpu_s"], "s"),
    ]
    report("rotation", rows, {"nodes": arguments.nodes, "plain": plain, "reauth": logins})


if __name__ == "__main__":
    main()
