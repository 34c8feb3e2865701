"""500 machines ordered at once: how many a cloud that limits calls makes, and how soon the last call goes out.

The daemon's own planner, journal, executor and EC2 adapter over HTTP with the real SDK. The EC2 is a stand-in in
another process (`ec2_limited.py`): it limits RunInstances as EC2 does, 5 at once and then 2 per second, or takes
200 ms for each answer. Machines are ordered one by one, and at last with one call for all. CPU is this process's alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from meshd.config import Settings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.wiring import build as build_machines
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.daemon.observe.source import sources_of
from meshd.daemon.observe.sources import Sources
from meshd.daemon.providers.guards import Guards
from meshd.daemon.providers.registry import load_providers
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, Snapshot
from meshd.obs.metrics import Metrics
from meshd.provider_api import Offer, ProviderName
from meshd.runtime.clock import SystemClock
from meshd.store.journal import Journal
from tests.bench.report import Row, report
from tests.live import live_settings
from tests.unit.daemon.small import Agents, Slurm
from tests.unit.worlds import tailnet

OFFER = Offer(ProviderName("aws"), "us-east-1", "us-east-1a", "p5.48xlarge", "h100-sxm", 8, 80, 192, 2**21, 55.04)
BURST, PER_S = 5, 2.0


class NoKeys:
    """No API of the tailnet."""

    async def key_record(self) -> None:
        """Nothing is known of the auth key."""


class Head:
    """The parts of the daemon that rent machines, with real time."""

    def __init__(self, directory: Path, endpoint_url: str, machines: int, *, gangs: bool) -> None:
        self.clock = SystemClock()
        self.machines = machines
        table = {
            "endpoint_url": endpoint_url, "access_key_id": "AKIASANDBOX", "secret_access_key": "bench-key",
            "images": {"us-east-1/x86_64": "ami-1"},
        }  # fmt: skip
        settings = Settings(providers={"aws": table})  # type: ignore[arg-type]
        live = live_settings(settings)
        self.journal = Journal(directory / "journal.db")
        machine_store = MachineStore(self.journal, self.clock, self._wake)
        guards = Guards(live, Metrics(), self.clock)
        loaded = load_providers(settings, self.clock.now, lambda _: None)
        self.providers = {name: guards.around(provider) for name, provider in loaded.items()}
        self.gang_max = {name: one.capabilities.gang_max for name, one in self.providers.items()} if gangs else {}
        slurm, agents = Slurm(), Agents()
        self.sources = Sources(
            self.providers, slurm, NoKeys(), self.journal, live, self.clock, self._wake,
        )  # fmt: skip
        self._awake = asyncio.Event()
        parts = build_machines(
            live, machine_store, providers=self.providers, slurm=slurm, agents=agents, devices=None, user_data=agents,
            desired=self._desired, snapshot=self._snapshot, list_again=self.sources.list_again, reports=NodeReports(),
            awake=self._awake,
        )  # fmt: skip
        self.executor, self.reconciler = parts.executor, parts.controller

    def _wake(self) -> None:
        self._awake.set()

    def _desired(self) -> Desired:
        now = self.clock.now()
        pool = Pool("h100", "h100", 8, self.machines, ("aws",))
        policy = Policy(idempotent_launch=frozenset({"aws"}), gang_max=self.gang_max)
        cooldowns, expired_cooldowns = self.journal.cooldowns(now), self.journal.expired_cooldowns(now)
        return Desired("lab", {"h100": pool}, self.journal.targets(), policy, cooldowns, expired_cooldowns)

    def _snapshot(self) -> Snapshot:
        now = self.clock.now()
        return Snapshot(
            instances=sources_of(self.sources.listings), offers={"aws": Fresh((OFFER,), now)},
            tailnet=Fresh(tailnet(), now), slurm=self.sources.slurm.current, node_addrs={},
        )  # fmt: skip

    def made(self) -> int:
        """Machines that the cloud has."""
        return sum(m.phase is Phase.BOOTING for m in self.journal.machines())

    async def _all_made(self) -> None:
        while self.made() < self.machines:  # noqa: ASYNC110  a bench that waited for events would be part of them
            await asyncio.sleep(0.05)

    async def order(self, until_s: float) -> float:
        """Order all, and wait until they are made or the time is over; returns the seconds that it took."""
        await self.sources.listings["aws"].read_once()
        began_s = time.monotonic()
        self.journal.set_target(Target("h100", 8 * self.machines), "bench", datetime.now(UTC))
        tasks = [asyncio.create_task(self.reconciler.run()), asyncio.create_task(self.sources.listings["aws"].run())]
        done = asyncio.create_task(self._all_made())
        await asyncio.wait({done}, timeout=until_s)
        took_s = time.monotonic() - began_s
        for task in (done, *tasks):
            task.cancel()
        await asyncio.gather(done, *tasks, return_exceptions=True)
        await self.executor.aclose(5)
        for provider in self.providers.values():
            await provider.aclose()
        self.journal.close()
        return took_s


async def _one(machines: int, until_s: float, *flags: str, gangs: bool = False) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        argv = [sys.executable, "-m", "tests.bench.ec2_limited", *flags]
        pipe = asyncio.subprocess.PIPE
        server = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
        assert server.stdout is not None
        url = f"http://127.0.0.1:{json.loads(await server.stdout.readline())['port']}"
        try:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            head = Head(directory, url, machines, gangs=gangs)
            cpu_s = time.process_time()
            took_s = await head.order(until_s)
            cpu_s = time.process_time() - cpu_s
            async with aiohttp.ClientSession() as session, session.get(f"{url}/figures") as answer:
                return {**await answer.json(), "took_s": took_s, "cpu_s": cpu_s}
        finally:
            server.terminate()
            await server.wait()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=231.0, help="for the cloud that limits calls")
    parser.add_argument("--answer-ms", type=float, default=200.0, help="for the cloud that does not")
    parser.add_argument("--only", choices=("limited", "slow"))
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    rows: list[Row] = []
    found: dict[str, dict[str, Any]] = {}
    if arguments.only != "slow":
        flags = ("--burst", str(BURST), "--per-s", str(PER_S))
        limited = found["limited"] = asyncio.run(_one(arguments.machines, arguments.seconds, *flags))
        rows += [
            Row(f"limited: made in {limited['took_s']:.0f} s", limited["made"], ""),
            Row("limited: what the cloud allows in that time", BURST + PER_S * limited["took_s"], ""),
            Row("limited: refused calls", limited.get("refused", 0), ""),
            Row("limited: listings", limited.get("DescribeInstances", 0), ""),
            Row("limited: CPU", limited["cpu_s"], "s"),
        ]
    if arguments.only != "limited":
        flags = ("--answer-ms", str(arguments.answer_ms))
        slow = found["slow"] = asyncio.run(_one(arguments.machines, 300.0, *flags))
        rows += [
            Row(f"answers in {arguments.answer_ms:g} ms: first call to last", slow["span_s"], "s"),
            Row("the same: order to all made", slow["took_s"], "s"),
            Row("the same: CPU", slow["cpu_s"], "s"),
        ]
        gang = found["gang"] = asyncio.run(_one(arguments.machines, 300.0, *flags, gangs=True))
        rows += [
            Row("one call for all: RunInstances", gang["RunInstances"], ""),
            Row("one call for all: order to all made", gang["took_s"], "s"),
            Row("one call for all: CPU", gang["cpu_s"], "s"),
        ]
    report("launches", rows, {"machines": arguments.machines, **found})


if __name__ == "__main__":
    main()
