"""A week of jobs, lived through by the sandbox at one 1440th of its time, and as `meshctl simulate` sees it."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from deploy.sandbox.clouds.ledger import RentedMachine
from deploy.sandbox.clouds.server import BILLING
from meshd.simulate.load import JobSpec, Scenario, jobs_of
from meshd.simulate.sacct import COLUMNS
from tests.e2e.lab import USER, Lab
from tests.e2e.storm import slot_of

FASTER = 1440.0
"""A day of the week is a minute of the sandbox."""
SEED = 1
IDLE_S = {"h100": 8, "l": 12}
POOL = """\
[pools.{name}]
gpu = "h100"
gpus_per_node = 1
max_nodes = {slots}
cpus_min = 1
memory_min_mib = 1024
default = {default}
providers = ["{provider}"]
idle_timeout_s = {idle_s}
"""
POOLS = "\n".join(
    POOL.format(name=name, slots=slots, default=default, provider=provider, idle_s=IDLE_S[name])
    for name, slots, default, provider in (("h100", 5, "true", "aws"), ("l", 3, "false", "lambda"))
)
WEEK = """\
lasts = "{lasts_s}s"

[[jobs]]                            # people's experiments, at any hour
pool = "h100"
per_hour = {often}
lasts_between = ["{short_s}s", "{long_s}s"]
gpus_per_node = 1

[[jobs]]                            # trainings on three nodes
pool = "h100"
every = "{every_s}s"
nodes = 3
lasts_between = ["{train_s}s", "{train_most_s}s"]
gpus_per_node = 1

[[jobs]]                            # a sweep on Saturday
pool = "h100"
at = ["{saturday_s}s"]
count = 6
lasts = "{sweep_s}s"
gpus_per_node = 1

[[jobs]]
pool = "l"
per_hour = {seldom}
lasts_between = ["{short_s}s", "{long_s}s"]
gpus_per_node = 1

[cloud]
boot = ["{boot_s}s", "{boot_most_s}s"]
"""
HOUR_S = 3600.0


def load_toml(faster: float, boot_s: tuple[float, float]) -> str:
    """The load file of the week at this pace; `boot_s` is by the clock of that pace."""
    hour_s = HOUR_S / faster
    return WEEK.format(
        lasts_s=168 * hour_s, often=0.25 * faster, seldom=0.15 * faster, short_s=2 * hour_s, long_s=10 * hour_s,
        every_s=24 * hour_s, train_s=6 * hour_s, train_most_s=16 * hour_s, saturday_s=120 * hour_s,
        sweep_s=8 * hour_s, boot_s=boot_s[0], boot_most_s=boot_s[1],
    )  # fmt: skip


def jobs_at(faster: float) -> list[JobSpec]:
    """The jobs of the week at this pace."""
    return jobs_of(Scenario.model_validate(tomllib.loads(load_toml(faster, (1.0, 1.0)))), SEED)


@dataclass(frozen=True, slots=True)
class Sums:
    """What came of a load in a pool, or in all of them.

    Attributes:
        machines: that were rented.
        machine_s: how long they were rented.
        usd: what they cost.
        waits_s: of the jobs, from the submit to the start: the mean and the longest.
    """

    machines: int
    machine_s: float
    usd: float
    wait_mean_s: float
    wait_max_s: float

    def __str__(self) -> str:
        waits = f"waits {self.wait_mean_s:.1f} s, at most {self.wait_max_s:.1f} s"
        return f"{self.machines} machines, {self.machine_s:.0f} machine-seconds, {self.usd:.3f} USD, {waits}"


@dataclass(frozen=True, slots=True)
class Lived:
    """What the sandbox did.

    Attributes:
        dump: what sacct says of it.
        machines: those of the clouds, by cloud.
        boot_s: from a create call to READY: eight of ten machines took between these.
    """

    dump: str
    machines: Mapping[str, Sequence[RentedMachine]]
    boot_s: tuple[float, float]

    def sums(self, *, billed: bool) -> dict[str, Sums]:
        """By pool, and for all ("").

        Args:
            billed: the time is that of the clouds' bills, which they round up; else the time from the create call to
                the order to end the machine.
        """
        now = datetime.now(UTC)
        rows = [
            (slot_of(machine).rpartition("-")[0], _time_s(machine, cloud, now, billed=billed), machine.usd_per_hour)
            for cloud, machines in self.machines.items()
            for machine in machines
        ]
        waits = [(line["Partition"], _epoch(line["Start"]) - _epoch(line["Submit"])) for line in self.lines()]
        return {
            pool: Sums(
                len(mine), sum(row[1] for row in mine), sum(row[1] * row[2] / HOUR_S for row in mine), fmean(waited),
                max(waited),
            )
            for pool in ("h100", "l", "")
            if (mine := [row for row in rows if pool in (row[0], "")])
            and (waited := [wait for name, wait in waits if pool in (name, "")])
        }  # fmt: skip

    def lines(self) -> list[dict[str, str]]:
        """The rows of the dump."""
        header, *rows = self.dump.splitlines()
        return [dict(zip(header.split("|"), row.split("|"), strict=True)) for row in rows]


def _time_s(machine: RentedMachine, cloud: str, now: datetime, *, billed: bool) -> float:
    if billed:
        return machine.billed_usd(now, BILLING[cloud]) / machine.usd_per_hour * HOUR_S
    end = machine.end_asked_at or machine.ended_at or now
    return (end - machine.created_at).total_seconds()


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


async def live(lab: Lab) -> Lived:
    """Submit the jobs of the week at their times, and wait until all have ended and nothing is rented any more."""
    event = await lab.last_event()
    ever = {cloud: len(lab.ledger(cloud)) for cloud in BILLING if cloud in lab.cluster.clouds.clouds}
    since = (await lab.head.run("date", "-u", "+%Y-%m-%dT%H:%M:%S")).text
    jobs, ids = jobs_at(FASTER), []
    loop = asyncio.get_running_loop()
    began = loop.time()
    for job in jobs:
        await asyncio.sleep(began + job.at_s - loop.time())
        argv = [
            "runuser", "-u", USER, "--", "sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null",
            "--gpus-per-node=1", f"--partition={job.pool}", f"--nodes={job.nodes}",
        ]  # fmt: skip
        ids.append((await lab.head.run(*argv, stdin=f"#!/bin/sh\nsleep {job.run_s:.1f}\n".encode())).text)
    for name in ids:
        await lab.completed(name)
    await lab.nothing_left()
    machines = {cloud: lab.ledger(cloud)[count:] for cloud, count in ever.items()}

    async def recorded() -> str | None:
        argv = ["env", "TZ=UTC", "sacct", "-a", "-X", "-P", "--noconvert", "-S", since, "-o", COLUMNS]
        text = (await lab.head.run(*argv)).text
        return text if text.count("|COMPLETED|") == len(jobs) else None

    dump = await lab.until(recorded, "sacct has all jobs")
    return Lived(dump, machines, _boots(machines, await lab.events(event)))


def _boots(machines: Mapping[str, Sequence[RentedMachine]], events: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    ready = {
        event["machine"]: datetime.fromisoformat(event["at"])
        for event in events
        if event["kind"] == "phase" and event["text"].startswith("ready")
    }
    took = [
        (ready[machine.token] - machine.created_at).total_seconds()
        for some in machines.values()
        for machine in some
        if machine.token in ready
    ]
    tenths = quantiles(took, n=10)
    return tenths[0], tenths[-1]


async def simulated(
    lab: Lab, files: Mapping[str, str], *words: str, config: str = "/etc/meshd/meshd.toml", faster: float = 1.0
) -> dict[str, Sums]:
    """What `meshctl simulate` says on the head: by pool, and for all ("").

    Args:
        lab: the cluster.
        files: written to /tmp of the head before, by name.
        words: options of the command.
        config: the settings.
        faster: times of the answer are divided by it.
    """
    for name, text in files.items():
        await lab.head.write(f"/tmp/{name}", text)
    argv = ("--config", config, "simulate", *words, "--seed", str(SEED), "-o", "json")
    result = await lab.meshctl(*argv, timeout_s=240)
    assert result.returncode == 0, result.stderr.decode()
    view = json.loads(result.stdout)
    assert not view["never"], view["never"]
    assert not view["left_out"], view["left_out"]
    rows = [*view["pools"], view["all_pools"]]
    assert all(row["started"] == row["jobs"] for row in rows)
    return {
        row["pool"]: Sums(
            row["machines"], row["machine_hours"] * HOUR_S / faster, row["usd"] / faster,
            row["wait_mean_s"] / faster, row["wait_max_s"] / faster,
        )
        for row in rows
    }  # fmt: skip


def slowly(settings: str) -> str:
    """The settings of the sandbox with the times of the week."""
    for pool, idle_s in IDLE_S.items():
        settings = re.sub(
            rf"(?s)(\[pools\.{pool}\].*?idle_timeout_s = ){idle_s}\b", rf"\g<1>{idle_s * FASTER:.0f}", settings
        )
    return re.sub(r"\[timing\]\n", f"[timing]\nboot_timeout_s = {900 * FASTER:.0f}\n", settings)


def keep(directory: Path, lived: Lived) -> None:
    """Write down what the sandbox did, for whoever looks why a simulation differs."""
    (directory / "dump").write_text(lived.dump)
    rows = [
        [cloud, m.token, m.created_at.isoformat(), str(m.end_asked_at), str(m.ended_at), m.usd_per_hour]
        for cloud, some in lived.machines.items()
        for m in some
    ]
    (directory / "machines.json").write_text(json.dumps([lived.boot_s, rows]))
