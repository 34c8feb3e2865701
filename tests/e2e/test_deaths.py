"""Machines that die by themselves are replaced; what ran on them is queued again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


async def replaced(lab: Lab, dead: str, gpus: int) -> float:
    """Wait until a dead machine is gone and another one stands in; the seconds that it took."""
    began = time.monotonic()

    async def done() -> dict[str, Any] | None:
        rows = await lab.nodes()
        ready = dead not in rows and [row["phase"] for row in rows.values()] == ["ready"] * gpus
        return {row["slot"]: row["address"] for row in rows.values()} if ready else None

    joined = await lab.until(done, f"{dead} is replaced")
    took = time.monotonic() - began
    assert {machine.token for machine in lab.alive()} == set(await lab.nodes())

    async def agreed() -> bool:
        slots = (await lab.slots()).values()
        return {s.name: s.address for s in slots if s.address.startswith("100.")} == joined

    await lab.until(agreed, "Slurm has the nodes' addresses and no other")

    async def forgotten() -> bool:
        return dead not in await lab.devices()

    await lab.until(forgotten, "the dead machine's device is gone")
    return took


@pytest.mark.any_machines
async def test_an_idle_machine_dies(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.have(2)
    dead = sorted(await lab.nodes())[0]
    lab.die(dead)
    figure(f"replaced in {await replaced(lab, dead, 2):.1f} s")
    said = await lab.srun("-N2", "--gpus-per-node=1", "hostname")
    assert len(set(said.split())) == 2


@pytest.mark.any_machines
async def test_a_machine_with_a_job_dies(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.have(1)
    job = await lab.sbatch("[ ${SLURM_RESTART_COUNT:-0} -gt 0 ] || sleep 600; echo done", "--requeue")
    slot = await lab.running(job)
    dead = (await lab.by_slot())[slot]["machine"]
    event = await lab.last_event()
    lab.die(dead)
    figure(f"replaced in {await replaced(lab, dead, 1):.1f} s")
    seen = await lab.job(job)
    assert seen["Restarts"] == "1", seen
    told = [e["text"] for e in await lab.events(event) if e["machine"] == dead and e["kind"] == "failure"]
    assert told
    assert "aws ended it" in told[0]
    # Slurm lets a job that was queued again wait until its old credentials have expired; that need not be waited for.

    async def may_begin() -> bool:
        if (await lab.job(job))["JobState"] == "PENDING":
            await lab.head.run("scontrol", "update", f"JobId={job}", "StartTime=now")
            return True
        return (await lab.job(job))["JobState"] in {"RUNNING", "COMPLETED"}

    await lab.until(may_begin, "the job is queued again")
    await lab.completed(job)
