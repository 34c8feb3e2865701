"""A hundred machines join at once: how often Slurm is reconfigured, and how long until all lines are in force.

The daemon's own parts run in this process. The agents are hollow, but each speaks the real node API over loopback, from
an address of its own. slurmctld is a stand-in that reads the very nodes.conf, takes as long over a reconfigure as the
real one did (0.1 s), and counts.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from meshd.api.node_api import NodeApi
from meshd.daemon.app import Daemon
from meshd.daemon.nodes.service import HeadFacts
from meshd.errors import TailnetError
from meshd.model.machine import Phase
from meshd.model.observed import TailnetPeer
from meshd.munge.client import MungeClient
from meshd.runtime.clock import SystemClock
from meshd.runtime.run import Result
from meshd.slurm.client import SlurmClient
from meshd.slurm.conf import parse
from meshd.slurm.show import hostlist
from meshd.store.journal import Journal
from meshd.tailnet.deltas import Delta, apply
from tests.bench import fleet
from tests.bench.change import booting
from tests.bench.report import Row, report
from tests.bench.tick import Steady

RECONFIGURES_TARGET = 3
RECONFIGURE_S = 0.1


class Slurmctld:
    """Stands in for Slurm's commands."""

    def __init__(self, nodes_conf: Path) -> None:
        self._file = nodes_conf
        self._shown: dict[str, tuple[str, str]] = {}
        self.up: set[str] = set()
        self.reconfigures = 0

    def read(self) -> None:
        """Take the file, as slurmctld does at its start."""
        self._shown = {
            name: (address, record.get("state", "").upper())
            for record in parse(self._file.read_text()).records("NodeName")
            for name, address in zip(hostlist(record["nodename"]), hostlist(record["nodeaddr"]), strict=True)
        }

    async def __call__(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes | None = None,
        env: Mapping[str, str] | None = None, check: bool = True,
    ) -> Result:  # fmt: skip
        out = ""
        if list(argv[:2]) == ["scontrol", "reconfigure"]:
            self.reconfigures += 1
            await asyncio.sleep(RECONFIGURE_S)
            self.read()
        elif list(argv[:3]) == ["scontrol", "show", "config"]:
            out = "SLURM_VERSION = 24.11.5\n"
        elif list(argv[:3]) == ["scontrol", "show", "nodes"]:
            states = {name: "IDLE" if name in self.up else "DOWN" for name in self._shown}
            out = "".join(f"NodeName={n} NodeAddr={a} State={states[n]}\n" for n, (a, _) in self._shown.items())
        return Result(tuple(argv), 0, out, "")


class Whois:
    """Who calls from which loopback address."""

    def __init__(self) -> None:
        self.peers: dict[str, TailnetPeer] = {}

    async def whois(self, address: str) -> TailnetPeer:
        found = self.peers.get(address)
        if found is None:
            raise TailnetError(f"nobody has {address}")
        return found


async def agent(index: int, port: int, token: str, slurm: Slurmctld) -> None:
    """One machine's agent: it joins, says that munge is proved, and starts slurmd when it is told to."""
    source = f"127.1.{index // 250}.{index % 250 + 1}"
    connector = aiohttp.TCPConnector(local_addr=(source, 0))
    base = f"http://127.0.0.1:{port}/v1"
    async with aiohttp.ClientSession(connector=connector) as session:
        ask = session.post(f"{base}/join", json={"facts": asdict(fleet.facts(index))}, headers=_bearer(token))
        async with ask as answer:
            answer.raise_for_status()
            told = await answer.json()
        await asyncio.sleep(0.2)  # munged starts, and is proved
        results: list[dict[str, object]] = []
        while True:
            body = {"phase": "ready", "munge_ok": True, "roster_version": told["roster_version"], "results": results}
            async with session.post(f"{base}/poll", json=body, headers=_bearer(told["node_token"])) as answer:
                answer.raise_for_status()
                commands = (await answer.json())["commands"]
            if any(command["verb"] == "start_slurmd" for command in commands):
                slurm.up.add(told["slot"])
            versions = [c["args"]["version"] for c in commands if c["verb"] == "roster"]
            told["roster_version"] = max([told["roster_version"], *versions])
            results = [{"id": command["id"], "ok": True} for command in commands]


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def burst(count: int, over_s: float) -> dict[str, float]:
    """`count` machines come up, spread evenly at random over `over_s` seconds."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as directory:
        slurm = Slurmctld(Path(directory) / "slurm" / "nodes.conf")
        steady = Steady(Path(directory), 0, spare=count)
        journal = Journal(Path(directory) / "journal.db")
        for i in range(1, count + 1):
            journal.put(booting(i), "phase", "booting: aws accepted it", datetime.now(UTC))
        journal.close()
        whois = Whois()
        daemon = await steady.daemon(tailscaled=whois, slurm=SlurmClient(slurm, 10.0), munge=MungeClient(slurm))
        slurm.read()
        daemon.nodes.service.head = HeadFacts("lab", "127.0.0.1:6817", 1, 1, 2, 2, (), 25.0)
        api = NodeApi(daemon.nodes.service, poll_hold_s=25.0, clock=SystemClock())
        port = await api.start("127.0.0.1", 0)
        tasks = [
            asyncio.create_task(body())
            for body in (daemon.machines.controller.run, daemon.slurm_files.run, daemon.sources.slurm.run)
        ]

        async def machine(index: int, after_s: float) -> None:
            await asyncio.sleep(after_s)
            peer = TailnetPeer(f"n{index}", fleet.name(index), fleet.address(index), online=True)
            whois.peers[f"127.1.{index // 250}.{index % 250 + 1}"] = peer
            table = daemon.tailnet.table
            assert table is not None
            daemon.tailnet._publish(apply(table, Delta(changed=((index, peer),)))[0])
            await asyncio.sleep(0.4)  # the agent is fetched
            await agent(index, port, daemon.ports.tokens.join_token(fleet.name(index)).get_secret_value(), slurm)

        rng = random.Random(count)
        waits = [rng.uniform(0, over_s) for _ in range(count)]
        tasks += [asyncio.create_task(machine(i, wait)) for i, wait in enumerate(waits, start=1)]
        figures = await _watch(daemon, count)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await api.stop()
        await daemon.machines.executor.aclose(0.1)
        daemon.journal.close()
        return {"reconfigures": float(slurm.reconfigures), **figures}


async def _watch(daemon: Daemon, count: int) -> dict[str, float]:
    """Seconds from the first join to the last, until all lines are in force, and until all are READY."""
    seen: dict[str, float] = {}
    async with asyncio.timeout(180):
        while "ready" not in seen:
            await asyncio.sleep(0.02)
            machines, now = daemon.journal.machines(), time.monotonic()
            joined = sum(m.facts is not None for m in machines)
            for what, reached in (
                ("first", joined > 0),
                ("joined", joined == count),
                ("published", sum(m.line_published for m in machines) == count),
                ("ready", sum(m.phase is Phase.READY for m in machines) == count),
            ):
                if reached:
                    seen.setdefault(what, now)
    return {what: seen[what] - seen["first"] for what in ("joined", "published", "ready")}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--over-s", type=float, nargs="+", default=[2.0, 10.0, 30.0])
    arguments = parser.parse_args()
    rows: list[Row] = []
    details = {}
    for over_s in arguments.over_s:
        figures = details[f"{over_s:g}"] = asyncio.run(burst(arguments.machines, over_s))
        label = f"{arguments.machines} joins in {over_s:g} s"
        rows += [
            Row(f"{label}: reconfigures", figures["reconfigures"], "", RECONFIGURES_TARGET),
            Row(f"{label}: first join to last join", figures["joined"], "s"),
            Row(f"{label}: first join to all lines in force", figures["published"], "s"),
            Row(f"{label}: first join to all READY", figures["ready"], "s"),
        ]
    report("burst", rows, {"slurmctld": "stand-in", "bursts": details})


if __name__ == "__main__":
    main()
