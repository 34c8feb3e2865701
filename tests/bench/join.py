"""From `tailscale up` on a new machine to IDLE in Slurm: by meshd, and by a script written by hand, in turns.

Both run on real machines of one sandbox, at the same moment of the machine's boot and against the same head. The clock
starts at `tailscale up` and ends with slurmctld's own word that the node returned to service.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from deploy.sandbox.cluster import Cluster, ClusterOptions
from deploy.sandbox.headmachine import Head
from deploy.sandbox.hypervisor import MachineSpec
from deploy.sandbox.tailnet import CONTROL_URL
from tests.bench.report import Row, report, spread

BY_HAND = Path(__file__).with_name("byhand.sh")
LOG = "/var/log/slurm/slurmctld.log"
DOWN = "CPUs=1 RealMemory=1024 Gres=gpu:h100:1 State=DOWN"
"""The rest of a slot's line while no machine is there, by hand."""
QUIET_S = 0.3
"""A reconfigure that takes longer waits for slurmctld's word to machines that have just gone."""

MESHD_STAGES = (
    ("tailscale up", "up", "online"),
    ("agent fetched, facts and join", "online", "accepted"),
    ("publishing begins", "accepted", "asked"),
    ("slurmctld reconfigures", "asked", "reconfigured"),
    ("verified, slurmd ordered", "reconfigured", "ordered"),
    ("slurmd starts", "ordered", "slurmd"),
    ("slurmd registers: IDLE", "slurmd", "idle"),
    ("meshd notices: READY", "idle", "ready"),
    ("munge proved (beside publishing)", "accepted", "munge"),
)
QUEUE_STAGES = (
    *MESHD_STAGES[:2],
    ("address in force, slurmd ordered", "accepted", "ordered"),
    *MESHD_STAGES[5:],
)
"""In a pool that the queue scales no reconfigure is on the way."""

HAND_STAGES = (
    ("tailscale up", "up", "online"),
    ("munge key copied", "online", "key"),
    ("munged started and tried", "key", "munge"),
    ("line edited, slurmctld reconfigured", "munge", "reconfigured"),
    ("slurmd started", "reconfigured", "slurmd"),
    ("slurmd registers: IDLE", "slurmd", "idle"),
)
OWN = (
    "agent fetched, facts and join", "publishing begins", "verified, slurmd ordered",
    "address in force, slurmd ordered",
)  # fmt: skip
"""The stages of meshd's that are neither tailscale's nor Slurm's."""

Marks = dict[str, float]


async def logged(head: Head, since: int, pattern: str) -> float:
    """When slurmctld logged the first line that matches, after its first `since` lines."""
    text = await head.shell(f"tail -n +{since + 1} {LOG}")
    for line in text.splitlines():
        if re.search(pattern, line):
            return datetime.fromisoformat(line[1 : line.index("]")]).replace(tzinfo=UTC).timestamp()
    raise RuntimeError(f"slurmctld never logged {pattern!r}:\n{text[-2000:]}")


async def log_lines(head: Head) -> int:
    """How long slurmctld's log is."""
    return int(await head.shell(f"wc -l <{LOG}"))


async def settle(head: Head) -> None:
    """Wait until slurmctld no longer waits for machines that are gone."""
    script = f"s=$(date +%s%N); scontrol reconfigure; e=$(date +%s%N); [ $((e-s)) -lt {int(QUIET_S * 1e9)} ]"
    for _ in range(30):
        if (await head.run("sh", "-c", script, check=False)).returncode == 0:
            return
        await asyncio.sleep(1.0)
    raise RuntimeError("slurmctld does not come to rest")


def first(entries: Sequence[tuple[float, str]], pattern: str) -> float:
    """When the journal's first line that matches was written."""
    return next(at for at, text in entries if re.search(pattern, text))


class ByMeshd:
    """`meshctl scale` on the head does it all."""

    def __init__(self, cluster: Cluster, *, queue: bool) -> None:
        self._cluster = cluster
        self._queue = queue

    async def round(self) -> Marks:
        """Add one machine, read what happened when, and give it back."""
        head = self._cluster.head
        lines = await log_lines(head)
        await self._scale(1)
        node = (await head.json("meshctl", "nodes", "-o", "json"))["nodes"][0]
        marks = await self._machine(node["machine"])
        marks |= await self._events(node["machine"])
        marks["idle"] = await logged(head, lines, f"[Nn]ode {node['slot']} (returned to service|now responding)")
        if not self._queue:
            marks["asked"] = await logged(head, lines, "Processing Reconfiguration Request")
            marks["reconfigured"] = await logged(head, lines, "Relinquishing control to new child")
        await self._scale(0)
        return marks

    async def _scale(self, gpus: int) -> None:
        await self._cluster.head.run(
            "meshctl", "scale", "--gpus", str(gpus), "--wait", "--yes", "--timeout", "90s", timeout_s=120
        )

    async def _machine(self, name: str) -> Marks:
        run = self._cluster.world.hypervisor.run
        up = (await run(name, ["stat", "-c", "%.6Y", "/etc/meshd-node/tailscale.key"])).text
        text = (await run(name, ["journalctl", "--no-pager", "-o", "short-unix"])).text
        lines = [line for line in text.splitlines() if re.match(r"\d+\.\d+ ", line)]
        entries = [(float(line.split(" ", 1)[0]), line) for line in lines]
        return {
            "up": float(up),
            "online": first(entries, "stage 1: on the tailnet as"),
            "ordered": first(entries, "carrying out start_slurmd"),
            "slurmd": first(entries, "slurmd started on"),
        }

    async def _events(self, name: str) -> Marks:
        document = await self._cluster.head.json("meshctl", "events", "-n", "200", "-o", "json")
        found: Marks = {}
        names = {"configuring": "accepted", "ready": "ready"}
        for event in document["events"]:
            if event["machine"] == name:
                at = datetime.fromisoformat(event["at"]).timestamp()
                found[names.get(str(event["fields"].get("phase")), event["kind"])] = at
        return found


class ByHand:
    """`byhand.sh` on the machine does it all."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._count = 0
        self._ssh_key = ""

    async def prepare(self, slots: int) -> None:
        """What the administrator has done once: a login on the head, slots in slurm.conf."""
        head = self._cluster.head
        self._ssh_key = await head.shell(
            "ssh-keygen -q -t ed25519 -N '' -f /root/hand; cat /root/hand.pub >>/root/.ssh/authorized_keys; "
            "chmod 0600 /root/.ssh/authorized_keys; cat /root/hand"
        )
        lines = [f"NodeName=hand-{i} NodeAddr=239.195.0.{i} {DOWN}" for i in range(1, slots + 1)]
        partition = f"PartitionName=hand Nodes=hand-[1-{slots}] MaxTime=INFINITE State=UP"
        await head.write("/etc/slurm/hand.conf", "\n".join([*lines, partition, ""]))
        await head.shell(
            f"echo 'NodeName=hand-[1-{slots}] Name=gpu Type=h100 File=/dev/nvidia0' >>/etc/slurm/gres.conf; "
            "echo 'Include hand.conf' >>/etc/slurm/slurm.conf; scontrol reconfigure"
        )

    async def round(self) -> Marks:
        """Boot one machine with the script, read what happened when, and throw it away."""
        head, hypervisor = self._cluster.head, self._cluster.world.hypervisor
        self._count += 1
        name = f"hand-{self._count}"
        lines = await log_lines(head)
        script = BY_HAND.read_text()
        values = {"NODE": name, "HEAD": head.tailnet_ip, "SSH_KEY": self._ssh_key,
                  "AUTH_KEY": self._cluster.auth_key, "LOGIN_SERVER": CONTROL_URL}  # fmt: skip
        for key, value in values.items():
            script = script.replace(f"@{key}@", value)
        await hypervisor.boot(MachineSpec(name=name, user_data=script, gpus=1))
        marks: Marks = {}
        async with asyncio.timeout(90):
            while "idle" not in marks:
                await asyncio.sleep(0.5)
                text = (await hypervisor.run(name, ["cat", "/run/byhand.marks"], check=False)).text
                marks = {key: float(at) for key, at in (line.split() for line in text.splitlines())}
        marks["idle"] = await logged(head, lines, f"node {name} returned to service")
        await head.shell(
            f"sed -i 's/^NodeName={name} .*/NodeName={name} NodeAddr=239.195.0.{self._count} {DOWN}/' "
            "/etc/slurm/hand.conf"
        )
        await hypervisor.destroy(name)
        return marks


def stages(rounds: Sequence[Marks], names: Sequence[tuple[str, str, str]]) -> dict[str, list[float]]:
    """The seconds of each stage, in each round."""
    return {name: [m[end] - m[start] for m in rounds] for name, start, end in names}


async def measure(sandbox_id: str, repetitions: int, *, queue: bool) -> dict[str, list[Marks]]:
    """One round of each before the count begins, then meshd and by hand in turns."""
    rounds: dict[str, list[Marks]] = {"meshd": [], "hand": []}
    pool = f"scale_from_queue = {str(queue).lower()}"
    options = ClusterOptions(sandbox_id=sandbox_id, max_nodes=16, key_mode="reusable", pool=pool)
    async with Cluster(options) as cluster:
        head = await cluster.bring_up_head()
        hand = ByHand(cluster)
        sides: dict[str, ByMeshd | ByHand] = {"meshd": ByMeshd(cluster, queue=queue), "hand": hand}
        await hand.prepare(repetitions + 1)
        for repetition in range(repetitions + 1):
            for name, side in sides.items():
                await settle(head)
                marks = await side.round()
                print(f"{name:6}{marks['idle'] - marks['up']:7.3f} s  load {os.getloadavg()[0]:.1f}", flush=True)
                if repetition:
                    rounds[name].append(marks)
    return rounds


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--sandbox", default="bjoin")
    parser.add_argument("--queue", action="store_true", help="the pool is one that Slurm's queue scales")
    arguments = parser.parse_args()
    rounds = asyncio.run(measure(arguments.sandbox, arguments.repetitions, queue=arguments.queue))
    totals = {name: [m["idle"] - m["up"] for m in marks] for name, marks in rounds.items()}
    ratios = [a / b for a, b in zip(totals["meshd"], totals["hand"], strict=True)]
    meshd = stages(rounds["meshd"], QUEUE_STAGES if arguments.queue else MESHD_STAGES)
    hand = stages(rounds["hand"], HAND_STAGES)
    own = [sum(meshd[name][i] for name in OWN if name in meshd) for i in range(arguments.repetitions)]
    rows = [
        Row("meshd: tailscale up to IDLE", median(totals["meshd"]), "s"),
        Row("meshd's own share of it", median(own), "s", 3.0),
        Row("by hand: tailscale up to IDLE", median(totals["hand"]), "s"),
        Row("ratio, median of pairs", median(ratios), "x", 1.0 if arguments.queue else 1.3),
        *(Row(f"  meshd: {name}", median(values), "s") for name, values in meshd.items()),
        *(Row(f"  hand: {name}", median(values), "s") for name, values in hand.items()),
    ]
    details: dict[str, Any] = {
        "totals": totals, "ratios": ratios, "own": spread(own), "meshd_stages": meshd, "hand_stages": hand,
    }  # fmt: skip
    report("join_queue" if arguments.queue else "join", rows, details)


if __name__ == "__main__":
    main()
