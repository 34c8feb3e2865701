"""From the create call to READY: a machine of a cloud's own image, and one of an image that meshd has baked of it.

The cloud's own image has neither tailscale nor Slurm nor munge (`trixie-stock`). A machine of it installs them from an
archive inside the sandbox, so that the time of the network is not in the figures: only unpacking and setting up is.
Needs root and the sandbox's images.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from datetime import datetime
from statistics import median
from typing import Any

from deploy.sandbox import mirror
from deploy.sandbox.clouds.host import BootDefaults
from deploy.sandbox.cluster import Cluster, ClusterOptions
from deploy.sandbox.mirror import Mirror, ensure_mirror
from tests.bench.report import Row, report, spread
from tests.e2e.lab import QUICK

SUITE = "trixie"
WAIT_S = 600.0


class Rounds:
    """Rents one machine of aws after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def round(self) -> float:
        """Seconds from the create call to READY of one machine, which is given back then."""
        await self._scale(1)
        (node,) = (await self._cluster.head.json("meshctl", "nodes", "-o", "json"))["nodes"]
        at = await self._moves(node["machine"])
        await self._scale(0)
        return (at["ready"] - at["launching"]).total_seconds()

    async def bake(self) -> float:
        """Seconds from the order of an image until it is there."""
        head = self._cluster.head
        name = (await head.json("meshctl", "image", "bake", "--provider", "aws", "--yes", "-o", "json"))["name"]
        began = time.monotonic()
        async with asyncio.timeout(WAIT_S):
            while True:
                view = await head.json("meshctl", "image", "list", "-o", "json")
                (bake,) = [row for row in view["bakes"] if row["name"] == name]
                if bake["phase"] == "failed":
                    raise RuntimeError(bake["reason"])
                if bake["phase"] == "done":
                    return time.monotonic() - began
                await asyncio.sleep(0.5)

    async def _scale(self, gpus: int) -> None:
        words = ("--gpus", str(gpus), "--wait", "--yes", "--timeout", f"{WAIT_S:.0f}s")
        await self._cluster.head.run("meshctl", "scale", *words, timeout_s=WAIT_S + 30)

    async def _moves(self, name: str) -> dict[str, datetime]:
        """When a machine came into each phase."""
        document = await self._cluster.head.json("meshctl", "events", "-n", "300", "-o", "json")
        return {
            str(event["fields"]["phase"]): datetime.fromisoformat(event["at"])
            for event in document["events"]
            if event["machine"] == name and "phase" in event["fields"]
        }


async def measure(sandbox_id: str, repetitions: int) -> dict[str, list[float]]:
    """All rounds, by what the machines boot from."""
    timing = {**QUICK, "boot_timeout_s": WAIT_S, "join_timeout_s": WAIT_S}
    options = ClusterOptions(sandbox_id=sandbox_id, max_nodes=2, providers=("aws",), timing=timing)
    found: dict[str, list[float]] = {}
    async with Cluster(options) as cluster:
        await cluster.bring_up_head()
        host = cluster.clouds.host
        host.boot_defaults, host.names = BootDefaults(image=f"{SUITE}-stock"), mirror.names()
        host.certificate = mirror.certificate()[0]
        rounds = Rounds(cluster)

        async def several(what: str) -> None:
            found[what] = []
            for _ in range(repetitions):
                found[what].append(await rounds.round())
                sys.stdout.write(f"{what}: {found[what][-1]:.1f} s, load {os.getloadavg()[0]:.1f}\n")

        async with Mirror(cluster.world.network, await ensure_mirror(SUITE)):
            await several("stock")
            found["bake"] = [await rounds.bake()]
        await several("baked")
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--sandbox", default="bstock")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.sandbox, arguments.repetitions))
    rows = [
        Row("the cloud's own image: create call to READY", median(found["stock"]), "s"),
        Row("a baked image: create call to READY", median(found["baked"]), "s"),
        Row("baking it", found["bake"][0], "s"),
    ]
    details: dict[str, Any] = {**found, "spreads": {name: spread(values) for name, values in found.items()}}
    report("stock", rows, details)


if __name__ == "__main__":
    main()
