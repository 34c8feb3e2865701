"""Slurm's queue drives a pool: a job on an empty pool gets its machines, and they are given back when idle."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
import pytest_asyncio

from tests.e2e.lab import USER, WAIT_FOR_WORD, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

IDLE_S = 5
QUEUE = f"scale_from_queue = true\nidle_timeout_s = {IDLE_S}"
BOOT_S = 180.0
SLURM_LOOKS_S = 30.0
"""So seldom slurmctld itself looks whether the nodes of a job are up."""
PROLOG_GIVES_UP_S = 80.0
"""So long after the last sign of meshd its PrologSlurmctld ends by itself."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def queue(booted: Lab) -> AsyncIterator[Lab]:
    """The cluster whose pool Slurm's queue drives, meanwhile."""
    async with booted.enabled("aws", pool=QUEUE, slurm_settings="") as lab:
        yield lab


@pytest_asyncio.fixture(loop_scope="session")
async def lab(queue: Lab, request: pytest.FixtureRequest) -> Lab:
    """An empty pool."""
    await queue.begin(request.node.name)
    return queue


async def submit(lab: Lab, script: str, *options: str) -> str:
    """Submit a job as an ordinary user; its id."""
    argv = ["runuser", "-u", USER, "--", "sbatch", "--parsable", "--chdir=/tmp", "--gpus-per-node=1", *options]
    return (await lab.head.run(*argv, stdin=f"#!/bin/sh\n{script}\n".encode())).text


async def in_state(lab: Lab, job: str, *states: str, timeout_s: float = BOOT_S) -> dict[str, str]:
    """Wait until the job is in one of these states. A short job may be over before anybody sees it RUNNING."""

    async def look() -> dict[str, str] | None:
        found = await lab.job(job)
        return found if found["JobState"] in states else None

    return await lab.until(look, f"job {job} is {' or '.join(states)}", timeout_s)


async def all_free(lab: Lab) -> None:
    """Wait until Slurm shows idle~ for every slot, and nothing is rented."""
    await lab.nothing_left()


async def log_times(lab: Lab, pattern: str, since: int) -> list[datetime]:
    """The times of slurmctld's lines that match, from byte `since` of its log on."""
    text = await lab.head.shell(f"tail -c +{since + 1} /var/log/slurm/slurmctld.log")
    found = re.findall(rf"^\[(\S+?)\] (?:{pattern})", text, re.MULTILINE)
    return [datetime.fromisoformat(at) for at in found]


async def log_size(lab: Lab) -> int:
    return int(await lab.head.shell("stat -c %s /var/log/slurm/slurmctld.log"))


async def test_a_job_on_an_empty_pool(lab: Lab, figure: Callable[[str], None]) -> None:
    since, reconfigures = await log_size(lab), await lab.reconfigures()
    began = time.monotonic()
    job = await submit(lab, "srun hostname; srun sleep 2", "-N2", "--output=/tmp/queue-%j.out")
    await in_state(lab, job, "CONFIGURING")
    configuring_s = time.monotonic() - began
    running = await in_state(lab, job, "RUNNING")
    running_s = time.monotonic() - began
    nodes = await lab.by_slot()
    assert {row["phase"] for row in nodes.values()} == {"ready"}
    assert len(lab.alive()) == 2
    assert len({machine.region for machine in lab.alive()}) == 1
    created = min(machine.created_at for machine in lab.alive()).timestamp()
    first = nodes[running["BatchHost"]]["machine"]
    await lab.completed(job)
    said = await lab.inside(first, "cat", f"/tmp/queue-{job}.out")
    assert set(said.split()) == {"h100-1", "h100-2"}
    (submitted, *_) = await log_times(lab, "_slurm_rpc_submit_batch_job", since)
    registered = max(await log_times(lab, r"Node \S+ now responding", since))
    (started, *_) = await log_times(lab, f"Resetting JobId={job} start time", since) or [registered]
    await all_free(lab)
    given_back_s = time.monotonic() - began
    figure(
        f"CONFIGURING {configuring_s:.1f} s after sbatch, create call {created - submitted.timestamp():.1f} s, "
        f"last registration {(registered - submitted).total_seconds():.1f} s, "
        f"start {(started - registered).total_seconds():.2f} s after it, RUNNING seen at {running_s:.1f} s; all given "
        f"back at {given_back_s:.1f} s; {await lab.reconfigures() - reconfigures} reconfigures"
    )


async def test_a_job_that_is_cancelled_while_its_machines_boot(lab: Lab) -> None:
    job = await submit(lab, "true", "-N2")

    async def rented() -> bool:
        return len(lab.alive()) == 2

    await lab.until(rented, "two machines are rented")
    began = time.monotonic()
    await lab.head.run("scancel", job)

    async def ended() -> bool:
        return not lab.alive()

    await lab.until(ended, "both are given back")
    assert time.monotonic() - began < 60
    await all_free(lab)


async def test_no_capacity_and_capacity_later(lab: Lab, figure: Callable[[str], None]) -> None:
    lab.room(aws=0)
    job = await submit(lab, "srun hostname", "-N2", "--output=/tmp/queue-%j.out")

    async def sent_back() -> dict[str, str] | None:
        found = await lab.job(job)
        return found if found["Restarts"] == "1" and found["JobState"] == "PENDING" else None

    began = time.monotonic()
    await lab.until(sent_back, "the job is back in the queue")
    figure(f"back in the queue after {time.monotonic() - began:.1f} s")

    async def closed() -> bool:
        slots = (await lab.slots()).values()
        return all("DRAIN" in slot.states and slot.reason.startswith("meshd: no capacity until") for slot in slots)

    await lab.until(closed, "free slots say why and until when")

    async def told() -> bool:
        return (await lab.head.run("squeue", "-h", "-j", job, "-O", "admin_comment:200")).text.startswith("meshd:")

    await lab.until(told, "the job says it as well", 20)
    await asyncio.sleep(10)  # long enough for what must not happen: another round
    assert (await lab.job(job))["Restarts"] == "1"
    lab.room(aws=None)
    await lab.meshctl("scale", "--pool", "h100", "--gpus", "0", "--yes")  # lifts the cooldowns
    await in_state(lab, job, "RUNNING", "COMPLETED")
    await lab.completed(job)
    await all_free(lab)


async def test_kills_while_a_job_waits_for_its_machines(lab: Lab) -> None:
    job = await submit(lab, "srun hostname", "-N2")
    await in_state(lab, job, "CONFIGURING")
    for _ in range(3):
        await lab.kill_meshd()
        await asyncio.sleep(0.5)  # a moment, not a condition
    await lab.head.run("systemctl", "restart", "slurmctld", timeout_s=60)
    await in_state(lab, job, "COMPLETED")
    assert (await lab.job(job))["Restarts"] == "0"
    assert len(lab.ledger()) - sum(machine.ended_at is not None for machine in lab.ledger()) <= 2
    await all_free(lab)


async def test_a_job_whose_machines_come_while_meshd_restarts_starts_with_the_last_of_them(
    lab: Lab, figure: Callable[[str], None]
) -> None:
    """systemd starts meshd again after RestartSec: the job comes while nobody listens, its nodes while it boots."""
    since = await log_size(lab)
    await lab.head.run("systemctl", "kill", "-s", "KILL", "meshd")
    job = await submit(lab, "srun hostname", "-N2")
    await in_state(lab, job, "CONFIGURING")

    async def rented() -> bool:
        return len(lab.alive()) == 2

    await lab.until(rented, "two machines are rented")
    await lab.head.run("systemctl", "kill", "-s", "KILL", "meshd")
    await in_state(lab, job, "RUNNING", "COMPLETED")
    registered = max(await log_times(lab, r"Node \S+ now responding", since))
    (started, *_) = await log_times(lab, f"Resetting JobId={job} start time", since) or [registered]
    figure(f"meshd killed twice: the job starts {(started - registered).total_seconds():.1f} s after its last node")
    assert (started - registered).total_seconds() < SLURM_LOOKS_S / 2
    assert (await lab.job(job))["Restarts"] == "0"
    await all_free(lab)


async def test_scale_beside_the_queue(lab: Lab) -> None:
    ever = len(lab.ledger())
    await lab.have(1)
    job = await submit(lab, "srun hostname; sleep 3", "-N3")
    await in_state(lab, job, "RUNNING")
    assert len(lab.ledger()) - ever == 3, "the machine of the target is one of the three"
    await lab.completed(job)
    await all_free(lab)


@asynccontextmanager
async def hung(lab: Lab) -> AsyncIterator[str]:
    """meshd neither answers nor ends; yields a job that has just got a machine which was up already."""
    job = await submit(lab, WAIT_FOR_WORD)
    slot = (await in_state(lab, job, "RUNNING"))["NodeList"]
    machine = (await lab.by_slot())[slot]["machine"]
    await lab.head.run("systemctl", "kill", "-s", "STOP", "meshd")
    try:
        next_job = await submit(lab, "srun hostname", f"--nodelist={slot}")
        await lab.inside(machine, "touch", f"/tmp/end-{job}")
        await lab.completed(job)
        yield next_job
    finally:
        await lab.head.run("systemctl", "kill", "-s", "CONT", "meshd")


@pytest.mark.nightly
async def test_a_job_starts_although_meshd_hangs(lab: Lab, figure: Callable[[str], None]) -> None:
    before = await lab.meshd_pid()
    async with hung(lab) as job:
        began = time.monotonic()
        await in_state(lab, job, "RUNNING", "COMPLETED")
        took_s = time.monotonic() - began
        figure(f"meshd hangs: a job on a node that is up starts after {took_s:.1f} s")
        assert took_s < PROLOG_GIVES_UP_S + 10

    async def restarted() -> bool:
        return await lab.meshd_pid() not in {before, "0"}

    await lab.until(restarted, "systemd has killed and started meshd")
    await lab.completed(job)
    assert (await lab.job(job))["Restarts"] == "0"
    await all_free(lab)


@pytest.mark.nightly
async def test_a_job_starts_within_the_sites_own_time_limit_for_prologs(
    lab: Lab, figure: Callable[[str], None]
) -> None:
    """slurmctld kills a PrologSlurmctld after PrologEpilogTimeout, and puts the job back into the queue, held."""
    limit_s, conf, file = 25, "/etc/slurm/slurm.conf", "/run/meshd/prolog-limit-s"
    before = await lab.head.shell(f"cat {file}")

    async def known(words: str) -> None:
        async def look() -> bool:
            return await lab.head.shell(f"cat {file}") == words

        await lab.until(look, f"meshd allows the program {words} s")

    await lab.head.shell(f"cp -a {conf} /root/slurm.conf; echo PrologEpilogTimeout={limit_s} >>{conf}")
    try:
        await lab.head.run("scontrol", "reconfigure")
        await known(str(limit_s - 10))
        async with hung(lab) as job:
            began = time.monotonic()
            await in_state(lab, job, "RUNNING", "COMPLETED")
            took_s = time.monotonic() - began
            figure(f"PrologEpilogTimeout {limit_s} s, and meshd hangs: the job starts after {took_s:.1f} s")
            assert took_s < limit_s
        await lab.completed(job)
        assert (await lab.job(job))["Restarts"] == "0"
    finally:
        await lab.head.shell(f"mv /root/slurm.conf {conf}")
        await lab.head.run("scontrol", "reconfigure")
    await known(before)
    await all_free(lab)
