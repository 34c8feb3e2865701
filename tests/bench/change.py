"""From a change on the tailnet to the plan that answers it, in one process: bus message, watcher, wake, tick, journal.

A machine that boots turns up on the tailnet; the clock starts when tailscaled's message is there and ends when the
journal says JOINING, which is the answer. Around it is a fleet of READY machines, with nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles

from meshd.model.machine import Machine, Phase
from meshd.model.observed import TailnetPeer
from meshd.store.journal import Journal
from meshd.tailnet.deltas import Delta
from meshd.tailnet.status import TailnetTable
from meshd.tailnet.watcher import TailnetWatcher
from tests.bench import fleet
from tests.bench.report import Row, report, spread
from tests.bench.tick import Steady

TARGET_MS = 100.0


class Tailscaled:
    """Stands in for tailscaled: a status, and a bus on which the benchmark speaks."""

    def __init__(self, table: TailnetTable) -> None:
        self._table = table
        self.bus: asyncio.Queue[Delta] = asyncio.Queue()

    async def status(self) -> TailnetTable:
        return self._table

    async def watch(self) -> AsyncGenerator[Delta, None]:
        yield Delta(status=self._table)
        while True:
            yield await self.bus.get()


def booting(index: int) -> Machine:
    """A machine that was just rented."""
    now = datetime.now(UTC)
    return replace(
        fleet.ready(index), phase=Phase.BOOTING, phase_since=now, created_at=now, launch_called_at=now, launched_at=now,
        tailnet_ip="", tailnet_id="", facts=None, munge_ok=False, line_published=False, slurmd_started=False,
        heartbeat_at=None, ready_at=None, path="",
    )  # fmt: skip


async def measure(count: int, changes: int) -> list[float]:
    """Milliseconds, for each change."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as directory:
        steady = Steady(Path(directory), count, spare=changes)
        steady.fill()
        journal = Journal(Path(directory) / "journal.db")
        for i in range(count + 1, count + changes + 1):
            journal.put(booting(i), "phase", "booting: aws accepted it", datetime.now(UTC))
        journal.close()
        daemon = await steady.daemon()
        source = Tailscaled(fleet.peers(count))
        daemon.tailnet = TailnetWatcher(source, daemon.ports.clock)
        daemon.tailnet.on_change(daemon.machines.controller.wake)
        news = asyncio.Event()
        daemon.journal.on_event(news.set)
        tasks = [asyncio.create_task(daemon.tailnet.run()), asyncio.create_task(daemon.machines.controller.run())]
        await asyncio.sleep(1.0)
        taken = []
        for i in range(count + 1, count + changes + 1):
            peer = TailnetPeer(f"n{i}", fleet.name(i), fleet.address(i), online=True)
            started = time.perf_counter()
            source.bus.put_nowait(Delta(changed=((i, peer),)))
            while (record := daemon.journal.machine(fleet.name(i))) is None or record.phase is Phase.BOOTING:
                news.clear()
                await asyncio.wait_for(news.wait(), 10)
            taken.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await daemon.machines.executor.aclose(0.1)
        daemon.journal.close()
        return taken


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=40)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 5000])
    arguments = parser.parse_args()
    rows: list[Row] = []
    details = {}
    for size in arguments.sizes:
        taken = asyncio.run(measure(size, arguments.changes))
        details[str(size)] = spread(taken)
        limit = TARGET_MS if size == arguments.sizes[0] else None
        rows.append(Row(f"{size:6} machines: change to plan, median", spread(taken)["median"], "ms", limit))
        rows.append(Row(f"{size:6} machines: change to plan, 90 %", quantiles(taken, n=10)[-1], "ms", limit))
    report("change", rows, {"sizes": details})


if __name__ == "__main__":
    main()
