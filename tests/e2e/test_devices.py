"""Somebody deletes a node's device in the admin console while a job runs on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.lab import Lab
from tests.e2e.test_jobs import WAIT_FOR_WORD

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]


async def test_a_device_deleted_under_a_job(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.scale(2)
    before = await lab.by_slot()
    job = await lab.sbatch(WAIT_FOR_WORD)
    slot = await lab.running(job)
    machine, old = before[slot]["machine"], before[slot]["address"]
    (other,) = set(before) - {slot}
    slurmd = await lab.inside(machine, "pgrep", "-x", "slurmd")
    event, reconfigures = await lab.last_event(), await lab.reconfigures()

    await lab.delete_device(machine)
    began = time.monotonic()

    async def told() -> bool:
        return f"the tailnet device of {machine} was deleted" in await lab.problems()

    await lab.until(told, "the head tells of it", 15)
    figure(f"the head told of it after {time.monotonic() - began:.1f} s")

    async def back() -> dict[str, Any] | None:
        row = (await lab.by_slot())[slot]
        return row if row["address"] != old else None

    row = await lab.until(back, "it is back with another address", 90)
    figure(f"it was back with another address after {time.monotonic() - began:.1f} s")
    new = row["address"]
    assert (row["machine"], row["phase"]) == (machine, "ready")

    async def in_slurm() -> bool:
        node = (await lab.slots())[slot]
        return node.address == new and bool(node.states & {"ALLOCATED", "MIXED"}) and len(node.states) == 1

    await lab.until(in_slurm, "Slurm has the new address, and reaches it", 60)
    figure(f"Slurm reached it there after {time.monotonic() - began:.1f} s")
    assert await lab.reconfigures() == reconfigures + 1
    assert (await lab.job(job))["JobState"] == "RUNNING"
    assert (await lab.job(job))["Restarts"] == "0"
    assert await lab.inside(machine, "pgrep", "-x", "slurmd") == slurmd, "slurmd was not touched"

    async def in_hosts() -> bool:
        return new in await lab.inside(before[other]["machine"], "cat", "/etc/hosts")

    await lab.until(in_hosts, "the other node knows its new address", 15)
    await lab.inside(machine, "touch", f"/tmp/end-{job}")

    async def done() -> bool:
        return (await lab.job(job))["JobState"] == "COMPLETED"

    await lab.until(done, "the job ends well")
    assert sorted((await lab.srun("-N2", "--gpus=2", "printenv", "SLURMD_NODENAME")).split()) == sorted(before)
    texts = [e["text"] for e in await lab.events(event) if e["machine"] == machine and e["kind"] == "device"]
    assert "was deleted, and aws says that the machine runs" in texts[0]
    assert texts[-1] == f"its tailnet device was deleted and made anew: {new} instead of {old}"
    assert machine not in await lab.problems()
    assert {row["machine"] for row in (await lab.by_slot()).values()} == {row["machine"] for row in before.values()}
