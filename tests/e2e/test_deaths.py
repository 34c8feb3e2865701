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


@pytest.mark.nightly
async def test_slurmctld_dies_before_it_saves_that_a_job_ended(lab: Lab, figure: Callable[[str], None]) -> None:
    """It believes then that the job runs. A node registers for its own sake only half an hour later."""
    await lab.have(1)
    job = await lab.sbatch(
        "[ ${SLURM_RESTART_COUNT:-0} -gt 0 ] || until [ -e /tmp/over ]; do sleep 0.2; done", "--requeue"
    )
    slot = await lab.running(job)
    machine = (await lab.by_slot())[slot]["machine"]
    state = (await lab.head.shell("scontrol show config | sed -n 's/^StateSaveLocation *= //p'")).strip()

    async def saved() -> bool | None:
        """Its state, with the running job in it, is on disk."""
        return bool((await lab.head.shell(f"find {state}/job_state -newer /root/began")).strip()) or None

    await lab.head.shell("touch /root/began")
    await lab.head.shell(f"scontrol update jobid={job} comment=saved")
    await lab.until(saved, "slurmctld saves the job")
    await lab.head.shell(f"rm -rf /root/state; cp -a {state} /root/state")
    event = await lab.last_event()
    await lab.inside(machine, "touch", "/tmp/over")
    await lab.completed(job)
    await lab.head.run("systemctl", "kill", "-s", "KILL", "slurmctld")
    await lab.head.shell(
        f"systemctl stop slurmctld; rm -rf {state}; mv /root/state {state}; rm /root/began; "
        "systemctl reset-failed slurmctld; systemctl start slurmctld"
    )
    assert (await lab.job(job))["JobState"] == "RUNNING"

    async def told() -> list[str] | None:
        return [e["text"] for e in await lab.events(event) if e["kind"] == "slurmd_reloaded"] or None

    await lab.until(told, "meshd has the node register", 300)

    async def again() -> bool | None:
        return (await lab.job(job))["Restarts"] == "1" or None

    await lab.until(again, "Slurm queues the job again", 30)
    await lab.completed(job)
    assert (await lab.by_slot())[slot]["machine"] == machine
    assert len(await told() or []) == 1
