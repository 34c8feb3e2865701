"""A storm: jobs of all sizes over several pools, while machines are refused, jobs cancelled, and daemons killed.

What is judged is what can be seen from outside: Slurm's records of its jobs, the clouds' ledgers, and what meshd wrote
about the jobs that it sent back.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

from ClusterShell.NodeSet import NodeSet

from deploy.sandbox.clouds.ledger import RentedMachine
from deploy.sandbox.proc import CommandError
from meshd.contract.faults import CloudFault, FaultKind
from tests.e2e.lab import USER, Lab

CLUSTER = "lab"
LOOK_S = 0.5
FORGOTTEN = "forgotten"
ENDED = {"COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL", "TIMEOUT", "BOOT_FAIL", FORGOTTEN}
MISSED_LOOKS = 4
"""After so many a job is one that Slurm does not know: slurmctld was killed before it had saved that it came."""
HELD = "launch_failed_requeued_held"
LATE_S = 3.0
"""Between Slurm's allocation and what an observer sees of it, and the other way round."""

POOL = """\
[pools.{name}]
gpu = "h100"
gpus_per_node = 1
max_nodes = {slots}
cpus_min = 1
memory_min_mib = 1024
default = {default}
spot = "{spot}"
providers = [{providers}]
scale_from_queue = true
idle_timeout_s = 6
max_usd_per_gpu_hour = {limit}
"""
CHEAP, DEAR = 0.01, 100.0
"""Limits in USD per hour and GPU: below every offer, and above."""


@dataclass(frozen=True, slots=True)
class StormPool:
    """A pool of the storm, and the most nodes that it has."""

    name: str
    slots: int
    providers: tuple[str, ...]
    spot: str = "never"


POOLS = (
    StormPool("h100", 3, ("aws",)),
    StormPool("g", 2, ("gce",), "prefer"),
    StormPool("l", 2, ("lambda",)),
)


def pools_toml(limits: Mapping[str, float]) -> str:
    """The pools' tables; the limits by pool, DEAR where none is given."""
    return "\n".join(
        POOL.format(
            name=pool.name, slots=pool.slots, default="true" if pool.name == "h100" else "false", spot=pool.spot,
            providers=", ".join(f'"{name}"' for name in pool.providers), limit=limits.get(pool.name, DEAR),
        )
        for pool in POOLS
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """Slurm has a job running: on which nodes, and from when until when, in seconds since 1970."""

    nodes: str
    begun_s: float
    ended_s: float


@dataclass(slots=True)
class Seen:
    """One job as an observer sees it.

    Attributes:
        cancelled: somebody cancelled it.
        last: the last record.
        missed: how many looks in a row have not shown it.
        runs: each time that Slurm had it running, by how often it had been put back before.
    """

    pool: str
    cancelled: bool = False
    last: Mapping[str, str] = field(default_factory=dict)
    missed: int = 0
    runs: dict[int, Run] = field(default_factory=dict)

    @property
    def restarts(self) -> int:
        """How often Slurm put it back into the queue."""
        return int(self.last.get("Restarts", "0"))


@dataclass(slots=True)
class Waste:
    """Time in which nodes of a pool were idle while a job that they suffice for waited, and slurmctld went on.

    Attributes:
        since_s: when that began; None when it is not so now.
        longest_s: the longest such time.
        total_s: all of it.
        about: the job and nodes of the longest.
    """

    since_s: float | None = None
    longest_s: float = 0.0
    total_s: float = 0.0
    about: str = ""


class Observer:
    """Looks at Slurm all the time, and at the clouds in the end."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.jobs: dict[str, Seen] = {}
        self.waste: dict[str, Waste] = {pool.name: Waste() for pool in POOLS}
        self.held: dict[str, list[tuple[float, float]]] = {}
        self.most_alive = 0
        self.blind = 0
        self._last_s = time.monotonic()
        self._slurmctld = ""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except CommandError:  # slurmctld restarts
                self.blind += 1
                for waste in self.waste.values():
                    waste.since_s = None
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once. Raises CommandError when Slurm does not answer."""
        script = (
            "systemctl show -P MainPID slurmctld && echo --- && "
            "scontrol show jobs --oneliner && echo --- && scontrol show nodes --oneliner"
        )
        before_s, known = time.time(), set(self.jobs)
        text = await self._lab.head.shell(script, timeout_s=20)
        slurmctld, jobs, nodes = text.split("---", 2)
        if slurmctld != self._slurmctld:  # it was started, or has reconfigured: its looks at the queue begin anew
            self._slurmctld = slurmctld
            for waste in self.waste.values():
                waste.since_s = None
        states = {
            fields["NodeName"]: frozenset(fields["State"].split("+"))
            for fields in map(_fields, nodes.splitlines())
            if "NodeName" in fields
        }
        records = [fields for fields in map(_fields, jobs.splitlines()) if fields.get("JobId") in self.jobs]
        for fields in records:
            self._note(self.jobs[fields["JobId"]], fields, before_s)
        for seen in (self.jobs[name] for name in known - {fields["JobId"] for fields in records}):
            seen.missed += 1
            if seen.missed >= MISSED_LOOKS:
                seen.last = {"JobState": FORGOTTEN}
        for pool, waste in self.waste.items():
            self._look_for_waste(waste, [job for job in records if job["Partition"] == pool], states, pool)
        self._last_s = time.monotonic()
        self.most_alive = max(self.most_alive, len(self._lab.all_alive()))

    def _note(self, seen: Seen, fields: Mapping[str, str], now_s: float) -> None:
        seen.last, seen.missed = fields, 0
        begun_s = _time(fields, "StartTime")
        if fields["JobState"] in {"RUNNING", "COMPLETING", "COMPLETED"} and begun_s is not None:
            ended_s = _time(fields, "EndTime") if fields["JobState"] != "RUNNING" else None
            seen.runs[seen.restarts] = Run(_nodes(fields), begun_s, now_s if ended_s is None else ended_s)
        if fields["JobState"] in {"CONFIGURING", "RUNNING", "COMPLETING"}:
            for slot in NodeSet(_nodes(fields)):
                self.held.setdefault(slot, []).append((now_s, now_s))

    def _look_for_waste(
        self, waste: Waste, jobs: list[Mapping[str, str]], states: Mapping[str, frozenset[str]], pool: str
    ) -> None:
        idle = [n for n, state in states.items() if n.startswith(f"{pool}-") and state == {"IDLE", "CLOUD"}]
        fits = [
            job["JobId"]
            for job in jobs
            if (job["JobState"] == "PENDING" and job["Reason"] in {"Resources", "Priority", "None"}
                and int(job["NumNodes"].partition("-")[0]) <= len(idle))
            or (job["JobState"] == "CONFIGURING" and all(states.get(n) in ({"MIXED", "CLOUD"}, {"ALLOCATED", "CLOUD"})
                                                         for n in NodeSet(_nodes(job))))
        ]  # fmt: skip
        now_s = time.monotonic()
        if not fits:
            waste.since_s = None
            return
        if waste.since_s is None:
            waste.since_s = now_s
            return
        waste.total_s += now_s - self._last_s
        if now_s - waste.since_s > waste.longest_s:
            waste.longest_s = now_s - waste.since_s
            waste.about = f"jobs {', '.join(fits)} while {idle} are idle"

    def ended(self) -> bool:
        """Whether every job has ended."""
        return all(seen.last.get("JobState") in ENDED for seen in self.jobs.values())


class Storm:
    """What happens to the cluster. Every decision follows from the seed; which jobs come, from nothing else."""

    def __init__(self, lab: Lab, observer: Observer, seed: int) -> None:
        self._lab = lab
        self._observer = observer
        self._jobs, self._deeds = random.Random(f"jobs {seed}"), random.Random(f"deeds {seed}")
        self.done: Counter[str] = Counter()
        #: How often each job was let go that Slurm held.
        self.released: Counter[str] = Counter()

    async def submit(self, jobs: int, pause_s: float) -> None:
        """Submit so many jobs, now and then several at once."""
        rng = self._jobs
        left = jobs
        while left:
            for _ in range(min(left, rng.choice((1, 1, 2, 3)))):
                pool = rng.choice(POOLS)
                nodes = rng.randint(1, pool.slots)
                await self._submit(pool.name, nodes, rng.randint(1, 5))
                left -= 1
            await asyncio.sleep(rng.uniform(0, 2 * pause_s))

    async def _submit(self, pool: str, nodes: int, seconds: int) -> None:
        argv = [
            "runuser", "-u", USER, "--", "sbatch", "--parsable", "--chdir=/tmp", "--gpus-per-node=1", "-p", pool,
            f"-N{nodes}", "--output=/dev/null",
        ]  # fmt: skip
        script = f"#!/bin/sh\nsrun sleep {seconds}\n".encode()
        for _ in range(20):  # sbatch itself waits for a slurmctld that restarts, for a while
            result = await self._lab.head.run(*argv, stdin=script, check=False)
            if result.returncode == 0:
                self._observer.jobs[result.text] = Seen(pool)
                return
            await asyncio.sleep(1)
        raise AssertionError(f"sbatch: {result.stderr.decode()}")

    async def rage(self, pause_s: float) -> None:
        """Do one bad thing after the other until cancelled."""
        deeds = [self._refuse, self._refuse, self._dear, self._cancel, self._cancel, self._kill_meshd,
                 self._kill_slurmctld, self._lose_answer, self._lose_answer]  # fmt: skip
        while True:
            await asyncio.sleep(self._deeds.uniform(0, 2 * pause_s))
            deed = self._deeds.choice(deeds)
            await deed()
            self.done[deed.__name__.lstrip("_")] += 1

    async def _refuse(self) -> None:
        """A cloud has room for few machines, or none."""
        cloud = self._deeds.choice(["aws", "gce", "lambda"])
        self._lab.room(**{cloud: self._deeds.choice((0, 0, 1, 2, None))})

    async def _dear(self) -> None:
        """Every offer of a pool is too dear for a while."""
        limits = {self._deeds.choice(POOLS).name: CHEAP} if self._deeds.random() < 0.5 else {}
        await self.limit(limits)

    async def limit(self, limits: Mapping[str, float]) -> None:
        """Other price limits from now on."""
        old = self._lab.settings_with()
        await self._lab.write_settings(re.sub(r"(?s)\[pools\..*?(?=\[providers)", lambda _: pools_toml(limits), old))

    async def _cancel(self) -> None:
        """Somebody cancels a job, whatever it is doing."""
        going = [
            name
            for name, seen in self._observer.jobs.items()
            if seen.last.get("JobState", "PENDING") in {"PENDING", "CONFIGURING", "RUNNING"} and not seen.cancelled
        ]
        if going:
            job = self._deeds.choice(going)
            self._observer.jobs[job].cancelled = True
            await self._lab.head.run("scancel", job, check=False)

    async def _kill_meshd(self) -> None:
        await self._lab.kill_meshd()

    async def _kill_slurmctld(self) -> None:
        if self._deeds.random() < 0.5:
            await self._lab.head.run("systemctl", "restart", "slurmctld", timeout_s=60, check=False)
        else:
            await self._lab.head.run("systemctl", "kill", "-s", "KILL", "slurmctld", check=False)
            await asyncio.sleep(self._deeds.uniform(0.2, 2))
            await self._lab.head.run("systemctl", "reset-failed", "slurmctld", check=False)
            await self._lab.head.run("systemctl", "start", "slurmctld", timeout_s=60, check=False)

    async def _lose_answer(self) -> None:
        """The answer of the next create call is lost, or an error, although the cloud has taken it."""
        kind = self._deeds.choice((FaultKind.CUT_AFTER, FaultKind.ERROR_AFTER, FaultKind.NO_CAPACITY))
        self._lab.fault(CloudFault(kind, operation="launch", status=503), self._deeds.choice(["aws", "gce", "lambda"]))

    async def release(self) -> None:
        """Let jobs go that Slurm holds, as whoever runs the cluster does.

        A slurmctld that was killed has forgotten what it did since it last saved its state, some seconds before. It
        launches a job that runs once more, and holds it when slurmd refuses to run it twice.
        """
        for name, seen in self._observer.jobs.items():
            if seen.last.get("JobState") == "PENDING" and seen.last.get("Reason") == HELD:
                await self._lab.head.run("scontrol", "release", name, check=False)
                seen.last = {}
                self.released[name] += 1

    async def calm(self) -> None:
        """No faults any more, and room for all."""
        for cloud in self._lab.cluster.clouds.clouds.values():
            cloud.faults.clear()
        self._lab.room(**dict.fromkeys(self._lab.cluster.clouds.clouds))
        await self._lab.head.run("systemctl", "reset-failed", "slurmctld", "meshd", check=False)
        await self._lab.head.run("systemctl", "start", "slurmctld", "meshd", timeout_s=60)
        await self.limit({})


@dataclass(frozen=True, slots=True)
class Bill:
    """Machine-seconds: what was paid for, and what the least would have been.

    Attributes:
        paid_s: from each create call to the order to end the machine.
        work_s: those in which Slurm had jobs running, also the ones whose end a killed slurmctld had forgotten. No plan
            can have less.
        clairvoyant_s: what somebody would pay who knows all jobs ahead, gives each to the slot that Slurm gave it, and
            lets a machine idle through a gap only where that is shorter than to boot another one.
        boot_s: the least seconds from the create call of a machine until a job ran on it.
    """

    machines: int
    paid_s: float
    work_s: float
    clairvoyant_s: float
    boot_s: float


def bill(machines: list[RentedMachine], jobs: Mapping[str, Seen]) -> Bill:
    """The bill of a storm that is over."""
    work: dict[str, list[tuple[float, float]]] = {}
    for run in (run for seen in jobs.values() for run in seen.runs.values()):
        for slot in NodeSet(run.nodes):
            work.setdefault(slot, []).append((run.begun_s, max(run.begun_s, run.ended_s)))
    boots = [
        begun - m.created_at.timestamp()
        for m in machines
        if (begun := _first_after(work.get(slot_of(m), []), m)) is not None
    ]
    boot_s = min(boots, default=0.0)
    least = 0.0
    for times in work.values():
        last: float | None = None
        for begun, ended in sorted(times):
            least += ended - begun + (boot_s if last is None else min(boot_s, max(0.0, begun - last)))
            last = ended
    paid_s = sum((_end(m) - m.created_at).total_seconds() for m in machines)
    return Bill(len(machines), paid_s, sum(e - b for times in work.values() for b, e in times), least, boot_s)


def slot_of(machine: RentedMachine) -> str:
    """The slot that a machine was rented for."""
    return machine.token.removeprefix(f"{CLUSTER}-").rpartition("-")[0]


def given_up(events: Iterable[Mapping[str, str]]) -> dict[str, float]:
    """When meshd wrote that it ends each machine, by name."""
    return {
        event["machine"]: datetime.fromisoformat(event["at"]).timestamp()
        for event in events
        if event["kind"] == "phase" and event["text"].startswith("terminating")
    }


def doubled(machines: list[RentedMachine], orders: Mapping[str, float]) -> list[str]:
    """The machines that were rented for a slot whose machine before still had it.

    Args:
        machines: the clouds'.
        orders: by name, when meshd wrote that it ends the machine. The call may come later: a cloud limits calls.
    """
    found = []
    for slot in {slot_of(m) for m in machines}:
        mine = sorted((m for m in machines if slot_of(m) == slot), key=lambda m: m.created_at)
        ends = {a.token: min(_end(a).timestamp(), orders.get(a.token, math.inf)) for a in mine}
        found += [f"{a.token} and {b.token}" for a, b in pairwise(mine) if b.created_at.timestamp() < ends[a.token]]
    return found


def without_reason(
    machines: list[RentedMachine], observer: Observer, allocated: Mapping[str, list[float]]
) -> list[str]:
    """The machines for whose slots no job had been given them, neither right before they were rented nor after.

    Args:
        machines: the clouds'.
        observer: what was seen.
        allocated: by slot, when slurmctld's log says that it gave it to a job.
    """
    found = []
    for machine in machines:
        slot, born_s = slot_of(machine), machine.created_at.timestamp()
        seen = any(begun - LATE_S <= born_s <= ended + LATE_S for begun, ended in observer.held.get(slot, ()))
        given = any(born_s - 15 <= at <= born_s + LATE_S for at in allocated.get(slot, ()))
        if not (seen or given):
            found.append(machine.token)
    return found


async def forgotten(lab: Lab, since: int) -> Counter[str]:
    """How often slurmctld queued each job again that had ended, from byte `since` of its log on.

    It was killed before it had saved that. It misses the job on its node, or the node is given up since its machine is
    gone: meshd had given it back after the job's end.
    """
    text = await lab.head.shell(f"tail -c +{since + 1} /var/log/slurm/slurmctld.log")
    found = Counter(re.findall(r"Batch JobId=(\d+) missing from batch node", text))
    ended: set[str] = set()
    for done, failed in re.findall(
        r"_job_complete: JobId=(\d+) done|[Rr]equeu\w+ (?:job )?JobId=(\d+) due to failure of node", text
    ):
        ended.add(done)
        found[failed] += failed in ended and bool(failed)
    return +found


async def unsaved(lab: Lab, since: int) -> set[str]:
    """The jobs that a killed slurmctld had accepted and not saved, from byte `since` of its log on: Slurm lost them."""
    text = await lab.head.shell(f"tail -c +{since + 1} /var/log/slurm/slurmctld.log")
    return set(re.findall(r"Purged files for defunct batch JobId=(\d+)", text))


async def allocations(lab: Lab, since: int) -> dict[str, list[float]]:
    """By slot, when slurmctld gave it to jobs, from byte `since` of its log on."""
    text = await lab.head.shell(f"tail -c +{since + 1} /var/log/slurm/slurmctld.log")
    found: dict[str, list[float]] = {}
    for at, nodes in re.findall(
        r"^\[(\S+?)\] sched(?:/backfill)?: .*?JobId=\S+ .*?(?:NodeList=|on )(\S+)", text, re.MULTILINE
    ):
        for slot in NodeSet(nodes):
            found.setdefault(slot, []).append(_epoch(at))
    return found


def _fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\S+?)=(\S*)", line))


def _nodes(fields: Mapping[str, str]) -> str:
    nodes = fields.get("NodeList", "")
    return "" if nodes in {"(null)", ""} else nodes


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _time(fields: Mapping[str, str], key: str) -> float | None:
    text = fields.get(key, "")
    return _epoch(text) if text[:1].isdigit() else None


def _end(machine: RentedMachine) -> datetime:
    end = machine.end_asked_at or machine.ended_at
    assert end is not None, f"{machine.token} has not ended"
    return end


def _first_after(times: list[tuple[float, float]], machine: RentedMachine) -> float | None:
    born, end = machine.created_at.timestamp(), _end(machine).timestamp()
    return min((begun for begun, _ in times if born < begun < end), default=None)
