"""Machines with jobs on them are waited for; idle ones go first; a wish that comes back keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.e2e.lab import WAIT_FOR_WORD, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


@pytest.mark.any_machines
async def test_a_working_node_is_waited_for(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.have(2)
    # The machine goes with its job, so what the job wrote is read before its end.
    job = await lab.sbatch(f"{WAIT_FOR_WORD}; until [ -e /tmp/read-$SLURM_JOB_ID ]; do sleep 0.2; done")
    slot = await lab.running(job)
    busy = (await lab.by_slot())[slot]["machine"]
    (idle,) = (await lab.nodes()).keys() - {busy}

    answer = await lab.want(0)
    assert {(one["slot"], tuple(one["jobs"])) for one in answer["waiting_for_jobs"]} == {(slot, (job,))}

    async def idle_gone() -> bool:
        rows = await lab.nodes()
        return idle not in rows and {m.token for m in lab.alive()} == {busy}

    await lab.until(idle_gone, "the idle machine is gone")

    async def drains() -> bool:
        (row,) = (await lab.nodes()).values()
        assert row["phase"] == "draining"
        return row["jobs"] == [job] and "DRAIN" in (await lab.slots())[slot].states

    await lab.until(drains, "the busy one takes no new jobs, and its job is shown")
    assert (await lab.job(job))["JobState"] == "RUNNING"

    await lab.inside(busy, "touch", f"/tmp/end-{job}")

    async def worked_on() -> bool:
        return await lab.inside(busy, "cat", f"/tmp/slurm-{job}.out", check=False) == "done"

    await lab.until(worked_on, "the job went on with its work")
    await lab.inside(busy, "touch", f"/tmp/read-{job}")
    ended = time.monotonic()
    await lab.completed(job)
    await lab.nothing_left()
    figure(f"the node was gone {time.monotonic() - ended:.1f} s after its job ended")
    seen = await lab.job(job)
    assert (seen["JobState"], seen["ExitCode"], seen["Restarts"]) == ("COMPLETED", "0:0", "0")


@pytest.mark.any_machines
async def test_a_wish_that_comes_back_keeps_the_node(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.have(1)
    ever = len(lab.ledger())
    (name,) = await lab.nodes()
    job = await lab.sbatch(WAIT_FOR_WORD)
    slot = await lab.running(job)
    await lab.want(0)

    async def drains() -> bool:
        return "DRAIN" in (await lab.slots())[slot].states

    await lab.until(drains, "the node takes no new jobs")
    began = time.monotonic()
    await lab.scale(1)
    figure(f"kept after all in {time.monotonic() - began:.1f} s")
    assert set(await lab.nodes()) == {name}

    async def works() -> bool:
        return (await lab.nodes())[name]["jobs"] == [job] and "DRAIN" not in (await lab.slots())[slot].states

    await lab.until(works, "the node takes jobs again, and its job is shown")
    await lab.inside(name, "touch", f"/tmp/end-{job}")
    assert (await lab.completed(job))["Restarts"] == "0"
    assert len(lab.ledger()) == ever


async def test_a_job_that_waits_runs_when_its_node_comes(lab: Lab, figure: Callable[[str], None]) -> None:
    job = await lab.sbatch("nvidia-smi -L")
    # Where Slurm's queue drives the pool, the job has its slot already.
    assert (await lab.job(job))["JobState"] in {"PENDING", "CONFIGURING"}
    began = time.monotonic()
    await lab.want(1)
    await lab.completed(job)
    figure(f"from `scale` to the end of the job that waited: {time.monotonic() - began:.1f} s")
