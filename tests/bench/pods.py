"""Connections between pods and virtual machines of one cluster, each as two tasks of a Slurm step have them.

Two pods and two virtual machines of the sandbox, all daemons as in production. Four kinds of pairs: time to connect,
round trip of one byte, throughput of one stream, and the CPU time of tailscaled and meshnetd on both sides meanwhile.
Needs root and the sandbox's images.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import Any

from deploy.sandbox.cluster import Cluster, ClusterOptions
from tests.bench.report import Row, report
from tests.e2e.lab import QUICK, SLURM, USER, Lab
from tests.e2e.pods import HOME, POD_CLOUD, PROGRAMS, VM_CLOUD

PROGRAM = "link.py"
CPU_S = (
    "for name in tailscaled meshnetd; do for pid in $(pgrep -x $name.*); do "
    "echo $name $(cut -d' ' -f14,15 /proc/$pid/stat); done; done"
)
"""Prints for each process its name, and its CPU time in user and kernel mode, in clock ticks."""


class Bench:
    """The cluster, and what is measured on it."""

    def __init__(self, lab: Lab, nodes: dict[str, list[str]], machines: dict[str, str]) -> None:
        self._lab = lab
        self.nodes = nodes
        self._machines = machines

    async def pair(self, what: str, client: str, server: str) -> Any:
        """The figures that the client prints."""
        words = ("--distribution=arbitrary", "-w", f"{server},{client}", f"--bcast=/tmp/{PROGRAM}")
        return json.loads(await self._lab.srun(*words, f"{HOME}/{PROGRAM}", what, server))

    async def cpu_s(self, slot: str) -> dict[str, float]:
        """The CPU time of the tailnet's daemons on a node so far, in seconds, by name."""
        used: dict[str, float] = {}
        for line in (await self._lab.inside(self._machines[slot], "sh", "-c", CPU_S)).splitlines():
            name, user, kernel = line.split()
            used[name] = used.get(name, 0.0) + (int(user) + int(kernel)) / os.sysconf("SC_CLK_TCK")
        return used

    async def throughput(self, client: str, server: str) -> dict[str, Any]:
        """The figures of a stream, and the CPU time that the daemons on both sides took for it."""
        before = [await self.cpu_s(slot) for slot in (client, server)]
        figures: dict[str, Any] = await self.pair("throughput", client, server)
        after = [await self.cpu_s(slot) for slot in (client, server)]
        for side, old, new in zip(("sender", "receiver"), before, after, strict=True):
            for name in new:
                figures[f"{side} {name}, CPU s per GB"] = (new[name] - old[name]) / (figures["bytes"] / 1e9)
        return figures


async def rented(lab: Lab) -> Bench:
    """Two pods and two virtual machines."""
    lab.room(**{POD_CLOUD: 2, VM_CLOUD: 2})
    await lab.scale(4, "--spread")
    await lab.head.write(f"{HOME}/{PROGRAM}", (PROGRAMS / PROGRAM).read_text("utf-8"), "0755")
    rows = await lab.by_slot()
    nodes = {
        kind: sorted(slot for slot, row in rows.items() if row["provider"] == cloud)
        for kind, cloud in (("pod", POD_CLOUD), ("VM", VM_CLOUD))
    }
    return Bench(lab, nodes, {slot: row["machine"] for slot, row in rows.items()})


async def measure(times: int) -> tuple[list[Row], dict[str, Any]]:
    """All pairs in turns, each `times` times; the best throughput and the lowest medians of each."""
    options = ClusterOptions(
        sandbox_id=f"bench{os.getpid() % 100000}", providers=(POD_CLOUD, VM_CLOUD), timing=QUICK, slurm=SLURM,
        boot_s=0.2, end_s=0.2,
    )  # fmt: skip
    async with Cluster(options) as cluster:
        await cluster.bring_up_head()
        await cluster.head.run("useradd", "--create-home", USER)
        bench = await rented(Lab(cluster))
        pods, vms = bench.nodes["pod"], bench.nodes["VM"]
        pairs = {
            "VM to VM": (vms[0], vms[1]),
            "pod to VM": (pods[0], vms[0]),
            "VM to pod": (vms[0], pods[0]),
            "pod to pod": (pods[0], pods[1]),
        }
        seen: dict[str, dict[str, list[Any]]] = {name: {"latency": [], "throughput": []} for name in pairs}
        for _ in range(times):
            for name, (client, server) in pairs.items():
                seen[name]["latency"].append(await bench.pair("latency", client, server))
                seen[name]["throughput"].append(await bench.throughput(client, server))
                sys.stdout.write(f"{name}: {seen[name]['throughput'][-1]['mb_per_s']:.1f} MB/s\n")
    rows = []
    for name, kinds in seen.items():
        for what in ("connect", "round_trip"):
            best = min(one[what]["median_ms"] for one in kinds["latency"])
            rows.append(Row(f"{name}: {what.replace('_', ' ')}, median", best, "ms"))
        best_stream = max(kinds["throughput"], key=lambda one: one["mb_per_s"])
        rows.append(Row(f"{name}: one stream", best_stream["mb_per_s"], "MB/s"))
        rows += [Row(f"{name}: {key}", value, "s") for key, value in best_stream.items() if "CPU" in key]
    return rows, {"pairs": seen}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="how often each pair is measured")
    arguments = parser.parse_args()
    rows, details = asyncio.run(measure(arguments.times))
    report("pods", rows, details)


if __name__ == "__main__":
    main()
