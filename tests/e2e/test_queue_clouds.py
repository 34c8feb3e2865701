"""Slurm's queue rents on each cloud: how long a job on an empty pool waits, gangs that move on, jobs of all forms."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import pytest
import pytest_asyncio

from deploy.sandbox.clouds.ledger import RentedMachine
from deploy.sandbox.vendors import VENDORS
from meshd.contract.faults import CloudFault, FaultKind
from tests.e2e.lab import GPU, USER, Lab
from tests.e2e.storm import doubled, given_up
from tests.e2e.terminal import terminal

pytestmark = [
    pytest.mark.e2e, pytest.mark.nightly, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600),
]  # fmt: skip

CLOUDS = tuple(VENDORS)
ONE_CALL = ("aws", "gce")
"""They rent several machines with one call."""

IDLE_S = 4
COOLDOWN_S = 12.0
OFFERS_S = 5.0
"""Lambda lists only what it has: soon it is seen to have room again."""

BOOT_S = 180.0
LOG = "/var/log/slurm/slurmctld.log"
NO_CAPACITY = r"meshd: no capacity until \d{4}-\d\d-\d\d \d\d:\d\d UTC"
"""The reason of a slot that is drained for lack of machines."""

POOL = """\
[pools.{name}]
gpu = "h100"
gpus_per_node = {gpus}
max_nodes = 5
pods = "allow"
cpus_min = 1
memory_min_mib = 1024
spot = "{spot}"
providers = [{providers}]
scale_from_queue = true
idle_timeout_s = {idle_s}
{more}
"""


def pool(name: str, *providers: str, gpus: int = 1, more: str = "") -> str:
    """The settings of a pool that Slurm's queue scales."""
    spot = "prefer" if any(VENDORS[cloud].only_spot for cloud in providers) else "never"
    shown = ", ".join(f'"{cloud}"' for cloud in providers)
    return POOL.format(name=name, gpus=gpus, spot=spot, providers=shown, idle_s=IDLE_S, more=more)


POOLS = "\n".join(
    [
        pool("h100", *CLOUDS, more="spread = true\ndefault = true"),
        *(pool(cloud, cloud) for cloud in CLOUDS),
        pool("pair", "lambda", gpus=2),
        pool("whole", "gce", "paperspace"),
        pool("single", "lambda", "paperspace"),
    ]
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def queue(booted: Lab) -> AsyncIterator[Lab]:
    """The cluster with all clouds, a pool for each, and pools of several."""
    timing = {**booted.cluster.options.timing, "no_capacity_cooldown_s": COOLDOWN_S, "offers_interval_s": OFFERS_S}
    async with booted.enabled(*CLOUDS, pools=POOLS, timing=timing) as lab:
        yield lab


@pytest_asyncio.fixture(loop_scope="session")
async def lab(queue: Lab, request: pytest.FixtureRequest) -> Lab:
    """Empty pools."""
    await queue.begin(request.node.name)
    return queue


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from slurmctld's word that a job was submitted."""

    configuring: float
    created: float
    registered: float
    running: float


async def submit(lab: Lab, where: str, script: str, *options: str) -> str:
    """Submit a job as an ordinary user; its id."""
    argv = ["runuser", "-u", USER, "--", "sbatch", "--parsable", "--chdir=/tmp", f"--partition={where}", *options]
    return (await lab.head.run(*argv, stdin=f"#!/bin/sh\n{script}\n".encode())).text


async def in_state(lab: Lab, job: str, *states: str, timeout_s: float = BOOT_S) -> dict[str, str]:
    """Wait until the job is in one of these states."""

    async def look() -> dict[str, str] | None:
        found = await lab.job(job)
        return found if found["JobState"] in states else None

    return await lab.until(look, f"job {job} is {' or '.join(states)}", timeout_s)


async def log_size(lab: Lab) -> int:
    return int(await lab.head.shell(f"stat -c %s {LOG}"))


async def logged(lab: Lab, since: int, pattern: str) -> list[float]:
    """When slurmctld wrote the lines that match, from byte `since` of its log on."""
    text = await lab.head.shell(f"tail -c +{since + 1} {LOG}")
    found = re.findall(rf"^\[(\S+?)\] (?:{pattern})", text, re.MULTILINE)
    return [datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp() for at in found]


async def times(lab: Lab, since: int, job: str, machines: list[RentedMachine]) -> Times:
    """What slurmctld's log and the cloud's ledger say of a job that runs."""
    (submitted,) = await logged(lab, since, f"_slurm_rpc_submit_batch_job: JobId={job} ")
    (allocated, *_) = await logged(lab, since, rf"sched(?:/backfill)?: (?:Allocate|Started) JobId={job} ")
    registered = max(await logged(lab, since, r"Node \S+ now responding"))
    # A reconfigure has slurmctld write it once more.
    starts = await logged(lab, since, f"(?:Resetting|prolog_running_decr: Configuration for) JobId={job} ")
    started = min(at for at in starts if at >= registered)
    created = min(machine.created_at for machine in machines).timestamp()
    return Times(*(at - submitted for at in (allocated, created, registered, started)))


def rented_since(lab: Lab, ever: dict[str, int]) -> dict[str, list[RentedMachine]]:
    """What each cloud has made since then; of those clouds that made anything."""
    found = {cloud: lab.ledger(cloud)[ever[cloud] :] for cloud in CLOUDS}
    return {cloud: machines for cloud, machines in found.items() if machines}


def count(lab: Lab) -> dict[str, int]:
    """How many machines each cloud has ever made."""
    return {cloud: len(lab.ledger(cloud)) for cloud in CLOUDS}


def calls(lab: Lab, cloud: str) -> int:
    """How many create calls the cloud had."""
    return lab.cluster.clouds.clouds[cloud].faults.calls("launch")


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_a_job_on_an_empty_pool(lab: Lab, cloud: str, figure: Callable[[str], None]) -> None:
    ever, asked, since = count(lab), calls(lab, cloud), await log_size(lab)
    job = await submit(lab, cloud, "srun hostname", "-N2", "--gpus-per-node=1", "--output=/tmp/queue-%j.out")
    await in_state(lab, job, "CONFIGURING")
    running = await in_state(lab, job, "RUNNING", "COMPLETED")
    (machines,) = rented_since(lab, ever).values()
    assert [machine.token for machine in machines] == [machine.token for machine in lab.alive(cloud)]
    assert len(machines) == 2
    assert len({(machine.region, machine.instance_type) for machine in machines}) == 1
    assert cloud not in ONE_CALL or calls(lab, cloud) - asked == 1
    first = (await lab.by_slot())[running["BatchHost"]]["machine"]
    await lab.completed(job)
    said = await lab.inside(first, "cat", f"/tmp/queue-{job}.out")
    assert set(said.split()) == {f"{cloud}-1", f"{cloud}-2"}
    took = await times(lab, since, job, machines)
    assert running["Restarts"] == "0"
    await lab.nothing_left()
    assert [machine.end for machine in machines] == ["asked", "asked"]

    began = time.monotonic()
    words = ("scale", "--pool", cloud, "--gpus", "2", "--yes", "--wait", "--timeout", "90s", "-o", "json")
    up = await lab.meshctl(*words, timeout_s=120)
    assert up.returncode == 0, up.text
    scaled_s = time.monotonic() - began
    job = await submit(lab, cloud, "srun hostname", "-N2", "--gpus-per-node=1")
    await in_state(lab, job, "RUNNING", "COMPLETED")
    by_hand_s = time.monotonic() - began
    await lab.completed(job)
    figure(
        f"{cloud:<10} | CONFIGURING {took.configuring:.2f} s | create call {took.created:.2f} s | last registration "
        f"{took.registered:.2f} s | RUNNING {took.running:.2f} s, {took.running - took.registered:.2f} s after it | "
        f"scale first: READY {scaled_s:.2f} s, RUNNING {by_hand_s:.2f} s"
    )


async def test_one_job_over_all_clouds(lab: Lab, figure: Callable[[str], None]) -> None:
    lab.room(**dict.fromkeys(CLOUDS, 1))
    ever, since = count(lab), await log_size(lab)
    job = await submit(lab, "h100", "srun nvidia-smi -L; sleep 1", "-N5", "--gpus-per-node=1", "--output=/tmp/q-%j")
    running = await in_state(lab, job, "RUNNING", "COMPLETED")
    made = rented_since(lab, ever)
    assert {cloud: len(machines) for cloud, machines in made.items()} == dict.fromkeys(CLOUDS, 1)
    first = (await lab.by_slot())[running["BatchHost"]]["machine"]
    await lab.completed(job)
    assert len(set(GPU.findall(await lab.inside(first, "cat", f"/tmp/q-{job}")))) == len(CLOUDS)
    took = await times(lab, since, job, [machine for machines in made.values() for machine in machines])
    figure(f"one job over five clouds: create call {took.created:.2f} s, RUNNING {took.running:.2f} s after submit")
    assert running["Restarts"] == "0"


async def test_jobs_of_all_forms(lab: Lab) -> None:
    ever = count(lab)
    array = await submit(lab, "aws", "true", "--array=1-2", "--gpus-per-node=1")
    exclusive = await submit(lab, "aws", "true", "-N1", "--exclusive")
    pair = await submit(lab, "pair", "[ $(nvidia-smi -L | wc -l) = 2 ]", "--gres=gpu:2")
    for job in (f"{array}_1", f"{array}_2", exclusive, pair):
        assert (await lab.completed(job))["Restarts"] == "0"
    made = {cloud: len(machines) for cloud, machines in rented_since(lab, ever).items()}
    assert made == {"aws": 3, "lambda": 1}
    await lab.nothing_left()


async def test_somebody_waits_at_a_terminal(lab: Lab) -> None:
    for program, begin, end in (
        (("srun", "--pty"), "bash", 7),
        (("salloc",), "srun", 0),
    ):
        tell = ("bash", "-c", "echo on-$SLURMD_NODENAME; exit 7") if begin == "bash" else ("srun", "hostname")
        words = ("runuser", "-u", USER, "--", *program, "--chdir=/tmp", "-p", "aws", "-N1", "--gpus-per-node=1", *tell)
        async with terminal(await lab.cluster.world.hypervisor.command("head", words)) as shown:
            await shown.see("meshd: ")  # what is waited for, before it is there
            await shown.see("aws-1", 90)
            assert await shown.ended() == end
        await lab.nothing_left()


async def test_a_target_beside_jobs(lab: Lab) -> None:
    ever = count(lab)
    target = await lab.meshctl("scale", "--pool", "aws", "--gpus", "1", "--yes")
    assert target.returncode == 0
    job = await submit(lab, "aws", "srun hostname; sleep 2", "-N3", "--gpus-per-node=1")
    await in_state(lab, job, "CONFIGURING")
    explained = await lab.ask("explain", job)
    assert [(one["job"], one["pool"], one["nodes"]) for one in explained["waiting"]] == [(job, "aws", 3)]
    (waits,) = [one for one in (await lab.status())["waiting"] if one["job"] == job]
    assert (waits["user"], waits["nodes"], waits["wait"] in {"order", "boot", "start"}) == (USER, 3, True)
    running = await in_state(lab, job, "RUNNING")
    assert len(rented_since(lab, ever)["aws"]) == 3, "the machine of the target is one of the three"
    assert sorted(await lab.by_slot()) == ["aws-1", "aws-2", "aws-3"]
    assert running["NodeList"] == "aws-[1-3]"
    shown = (await lab.head.run("sinfo", "-h", "-N", "-p", "aws", "-o", "%N %t")).text
    states = dict(line.split() for line in shown.splitlines())
    assert [states[f"aws-{i}"] for i in (4, 5)] == ["idle~", "idle~"]
    assert {states[f"aws-{i}"].rstrip("~#*") for i in (1, 2, 3)} <= {"mix", "alloc"}
    await lab.completed(job)
    await lab.nothing_left()


@pytest.mark.parametrize(
    ("where", "first", "other"), [("whole", "gce", "paperspace"), ("single", "lambda", "paperspace")]
)
async def test_a_gang_of_four_where_the_cheapest_place_has_three(
    lab: Lab, where: str, first: str, other: str, figure: Callable[[str], None]
) -> None:
    await lab.timing(no_capacity_cooldown_s=60.0)  # longer than three machines take to end
    lab.room(**{first: 3})
    # None of them is a node yet when the fourth is refused: it would be let go of first, and the job queued again.
    lab.fault(CloudFault(FaultKind.NEVER_BOOTS, operation="launch", times=3), first)
    event = await lab.last_event()
    ever, since = count(lab), await log_size(lab)
    job = await submit(lab, where, "srun hostname", "-N4", "--gpus-per-node=1")
    running = await in_state(lab, job, "RUNNING", "COMPLETED")
    assert running["Restarts"] == "0"
    made = rented_since(lab, ever)
    assert len(made[other]) == 4
    assert len(lab.alive(other)) == 4
    vain = made.get(first, [])
    assert where != "whole" or not vain, "one call makes all or nothing"
    paid = [((machine.ended_at or machine.created_at) - machine.created_at).total_seconds() for machine in vain]
    assert not lab.alive(first), "nothing is kept of the first place"
    took = await times(lab, since, job, made[other])
    figure(
        f"4 nodes, {first} has 3: {len(vain)} machines there for {sum(paid):.0f} s in all, all four at {other} "
        f"ordered {took.created:.1f} s and RUNNING {took.running:.1f} s after submit"
    )
    await lab.completed(job)
    await lab.nothing_left()
    assert not doubled([*vain, *made[other]], given_up(await lab.events(event))), "a slot has one machine at a time"


async def test_nobody_has_four(lab: Lab, figure: Callable[[str], None]) -> None:
    lab.room(gce=3, paperspace=3)
    began, seen = time.monotonic(), await lab.last_event()
    job = await submit(lab, "whole", "srun hostname", "-N4", "--gpus-per-node=1")

    async def sent_back() -> dict[str, str] | None:
        found = await lab.job(job)
        return found if found["Restarts"] != "0" and found["JobState"] == "PENDING" else None

    await lab.until(sent_back, "the job is back in the queue")
    back_s = time.monotonic() - began

    async def closed() -> list[str] | None:
        slots = [slot for slot in (await lab.slots()).values() if slot.name.startswith("whole-")]
        reasons = [slot.reason for slot in slots if {"DRAIN", "POWERED_DOWN"} <= slot.states]
        return reasons if reasons and all(re.match(NO_CAPACITY, one) for one in reasons) else None

    await lab.until(closed, "slots say why and until when")

    async def told() -> bool:
        return (await lab.head.run("squeue", "-h", "-j", job, "-O", "admin_comment:200")).text.startswith("meshd: ")

    await lab.until(told, "the job says it as well", 20)
    lab.room(gce=None, paperspace=None)
    freed = time.monotonic()
    done = await in_state(lab, job, "COMPLETED")
    figure(
        f"nobody has 4: back in the queue after {back_s:.1f} s; ended well {time.monotonic() - freed:.1f} s after "
        f"there is room (cooldown {COOLDOWN_S:.0f} s)"
    )
    backs = [one["at"] for one in await lab.events(seen) if f"job {job} is back in the queue" in one["text"]]
    assert int(done["Restarts"]) == len(backs), "each time it was told, and once for each try"
    tries = [datetime.fromisoformat(at) for at in backs]
    assert all((after - before).total_seconds() > COOLDOWN_S / 2 for before, after in pairwise(tries))
    await lab.nothing_left()
