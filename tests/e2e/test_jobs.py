"""Machines with jobs on them are waited for; idle ones go first; a wish that comes back keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

WAIT_FOR_WORD = "echo begun >/tmp/job-$SLURM_JOB_ID; until [ -e /tmp/end-$SLURM_JOB_ID ]; do sleep 0.2; done; echo done"


async def test_a_working_node_is_waited_for(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.scale(2)
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
    (row,) = (await lab.ask("nodes"))["nodes"]
    assert (row["phase"], row["jobs"]) == ("draining", [job])
    assert "DRAIN" in (await lab.slots())[slot].states
    assert (await lab.job(job))["JobState"] == "RUNNING"

    await lab.inside(busy, "touch", f"/tmp/end-{job}")

    async def worked_on() -> bool:
        return await lab.inside(busy, "cat", f"/tmp/slurm-{job}.out", check=False) == "done"

    await lab.until(worked_on, "the job went on with its work")
    await lab.inside(busy, "touch", f"/tmp/read-{job}")
    ended = time.monotonic()

    async def job_done() -> bool:
        return (await lab.job(job))["JobState"] == "COMPLETED"

    await lab.until(job_done, "the job is done")
    await lab.nothing_left()
    figure(f"the node was gone {time.monotonic() - ended:.1f} s after its job ended")
    seen = await lab.job(job)
    assert (seen["JobState"], seen["ExitCode"], seen["Restarts"]) == ("COMPLETED", "0:0", "0")


async def test_a_wish_that_comes_back_keeps_the_node(lab: Lab, figure: Callable[[str], None]) -> None:
    ever = len(lab.ledger())
    await lab.scale(1)
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
    rows = await lab.nodes()
    assert set(rows) == {name}
    assert "DRAIN" not in (await lab.slots())[slot].states
    assert rows[name]["jobs"] == [job]
    await lab.inside(name, "touch", f"/tmp/end-{job}")

    async def job_done() -> bool:
        return (await lab.job(job))["JobState"] == "COMPLETED"

    await lab.until(job_done, "the job is done")
    assert len(lab.ledger()) == ever + 1


async def test_a_job_that_waits_runs_when_its_node_comes(lab: Lab, figure: Callable[[str], None]) -> None:
    job = await lab.sbatch("nvidia-smi -L")
    assert (await lab.job(job))["JobState"] == "PENDING"
    began = time.monotonic()
    await lab.want(1)

    async def job_done() -> bool:
        return (await lab.job(job))["JobState"] == "COMPLETED"

    await lab.until(job_done, "the job is done")
    figure(f"from `scale` to the end of the job that waited: {time.monotonic() - began:.1f} s")
