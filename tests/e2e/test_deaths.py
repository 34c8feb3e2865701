"""Machines that die by themselves are replaced; what ran on them is queued again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


@pytest.mark.any_machines
async def test_an_idle_machine_dies(form: str, lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.have(2)
    dead = sorted(await lab.nodes())[0]
    lab.die(dead)
    figure(f"{form}: replaced in {await lab.replaced(dead, 2):.1f} s")
    said = await lab.srun("-N2", "--gpus-per-node=1", "hostname")
    assert len(set(said.split())) == 2


@pytest.mark.any_machines
async def test_a_machine_with_a_job_dies(form: str, lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.have(1)
    job = await lab.sbatch("[ ${SLURM_RESTART_COUNT:-0} -gt 0 ] || sleep 600; echo done", "--requeue")
    slot = await lab.running(job)
    dead = (await lab.by_slot())[slot]["machine"]
    event = await lab.last_event()
    lab.die(dead)
    figure(f"{form}: replaced in {await lab.replaced(dead, 1):.1f} s")
    seen = await lab.job(job)
    assert seen["Restarts"] == "1", seen
    told = [e["text"] for e in await lab.events(event) if e["machine"] == dead and e["kind"] == "failure"]
    assert told
    assert "aws ended it" in told[0]
    await lab.start_again(job)
    await lab.completed(job)
