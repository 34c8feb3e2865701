"""Freeze and guards on the whole cluster: jobs wait, and nothing is rented or ended beyond what is allowed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

import pytest
import pytest_asyncio

from tests.e2e.lab import USER, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def queue(booted: Lab) -> AsyncIterator[Lab]:
    """The cluster whose pool Slurm's queue drives, meanwhile."""
    async with booted.enabled("aws", pool="scale_from_queue = true\nidle_timeout_s = 5") as lab:
        yield lab


@pytest_asyncio.fixture(loop_scope="session")
async def lab(queue: Lab, request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    """An empty pool, and meshd thawed again."""
    await queue.begin(request.node.name)
    yield queue
    await queue.ask("thaw")


async def test_jobs_wait_through_a_freeze_and_a_restart_and_a_node_stays_until_the_thaw(lab: Lab) -> None:
    rented = len(lab.ledger("aws"))
    assert (await lab.ask("freeze", "--reason", "work on the cloud"))["frozen"]
    argv = (
        "runuser",
        "-u",
        USER,
        "--",
        "sbatch",
        "--parsable",
        "--chdir=/tmp",
        "--gpus-per-node=1",
        "--wrap=sleep 600",
    )
    job = (await lab.head.run(*argv)).text

    async def waits() -> bool:
        state = (await lab.job(job))["JobState"]
        said = (await lab.head.run("squeue", "-h", "-j", job, "-O", "admin_comment:200")).text
        slots = (await lab.head.run("sinfo", "-h", "-N", "-o", "%T %E")).text.splitlines()
        closed = all(slot.startswith("drained~ meshd: frozen") for slot in slots if "~" in slot)
        return state == "PENDING" and "work on the cloud" in said and closed

    await lab.until(waits, "the job waits, says why, and the slots are closed")
    await lab.restart_meshd()

    async def frozen() -> bool:
        status = await lab.status()
        return bool(status["tick_at"] and status["freeze"] and status["problems"][0]["code"] == "frozen")

    await lab.until(frozen, "it is frozen after the restart")
    assert (await lab.meshctl("status")).text.startswith("FROZEN since ")
    assert len(lab.ledger("aws")) == rented, "nothing was rented"
    assert (await lab.job(job))["JobState"] == "PENDING"
    await lab.ask("thaw")
    node = await lab.running(job)

    await lab.ask("freeze")
    machine = (await lab.by_slot())[node]["machine"]
    answer = await lab.ask("remove", node, "--yes")
    assert "frozen" in answer["machines"][0]["warnings"][0]
    await lab.head.run("scancel", job)

    async def drained() -> bool:
        row = (await lab.nodes())[machine]
        return row["phase"] == "draining" and not row["jobs"] and "DRAIN" in row["slurm_state"]

    await lab.until(drained, "the node is drained, and has no job any more")
    # In a second tick after that it would leave, were there no freeze.
    at = (await lab.status())["tick_at"]

    async def ticked() -> bool:
        return bool((await lab.status())["tick_at"] > at)

    for _ in range(3):
        await lab.until(ticked, "meshd ticks")
        at = (await lab.status())["tick_at"]
    assert len(lab.alive()) == 1 and (await lab.nodes())[machine]["phase"] == "draining"
    await lab.ask("thaw")
    await lab.nothing_left()
    kinds = [row["kind"] for row in (await lab.ask("events", "--kind", "freeze", "--kind", "thaw"))["events"]]
    assert kinds[-4:] == ["freeze", "thaw", "freeze", "thaw"]


async def test_no_more_machines_are_ordered_in_an_interval_than_the_guard_allows(lab: Lab) -> None:
    interval_s = 15
    async with lab.also(f"[guards]\nmax_launches = 1\nlaunch_interval_s = {interval_s}\n"):
        after = await lab.last_event()
        jobs = [await lab.sbatch("sleep 600") for _ in range(2)]

        async def held() -> bool:
            return "launches_held" in await lab.problem_codes()

        await lab.until(held, "one order waits, and meshd says so")
        for job in jobs:
            await lab.running(job)
        ordered = [row["at"] for row in await lab.events(after) if row["text"].startswith("launching: ")]
        first, second = sorted(map(datetime.fromisoformat, ordered))
        assert (second - first).total_seconds() >= interval_s
        await lab.head.run("scancel", *jobs)
        await lab.nothing_left()
