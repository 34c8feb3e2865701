"""Somebody deletes a node's device in the admin console while a job runs on it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.deleted_device import completed, device_events, nothing_wrong, told
from tests.e2e.lab import WAIT_FOR_WORD, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

API_TOKEN = "/etc/meshd/credentials/tailscale/api_token"


@pytest.mark.any_machines
async def test_a_device_deleted_under_a_step_over_two_nodes(lab: Lab, figure: Callable[[str], None]) -> None:
    """With an API credential the machine gets its address back, and no connection breaks."""
    await lab.have(2)
    before = await lab.by_slot()
    job = await lab.sbatch(f"srun sh -c '{WAIT_FOR_WORD}'", "-N2", "--gpus=2")
    await lab.running(job)
    for row in before.values():
        await lab.inside(row["machine"], "sh", "-c", f"until [ -e /tmp/job-{job} ]; do sleep 0.1; done")
    slot = (await lab.job(job))["BatchHost"]
    machine, address = before[slot]["machine"], before[slot]["address"]
    slurmd = await lab.inside(machine, "pgrep", "-x", "slurmd")
    event, reconfigures = await lab.last_event(), await lab.reconfigures()

    await lab.delete_device(machine)
    began = time.monotonic()
    await told(lab, machine, began, figure)

    async def back() -> bool:
        return f"with its address {address}" in " ".join(await device_events(lab, machine, event))

    await lab.until(back, "it is back with its address")
    figure(f"it was back with its old address after {time.monotonic() - began:.1f} s")
    await nothing_wrong(lab, machine)
    assert (await lab.job(job))["JobState"] == "RUNNING"
    assert await lab.inside(machine, "pgrep", "-x", "slurmd") == slurmd, "slurmd was not touched"
    for row in before.values():
        await lab.inside(row["machine"], "touch", f"/tmp/end-{job}")
    ending = time.monotonic()
    await completed(lab, job)
    figure(f"a step over two nodes ended well {time.monotonic() - ending:.1f} s after it was told to")
    assert await lab.reconfigures() == reconfigures, "nothing has changed for Slurm"
    assert sorted((await lab.srun("-N2", "--gpus=2", "printenv", "SLURMD_NODENAME")).split()) == sorted(before)


@pytest_asyncio.fixture(loop_scope="session")
async def without_api(lab: Lab) -> AsyncIterator[Lab]:
    """A meshd that has no credential for the tailnet's API."""
    await lab.head.run("mv", API_TOKEN, "/root/api_token")
    await lab.restart_meshd()
    yield lab
    await lab.head.run("mv", "/root/api_token", API_TOKEN)
    await lab.restart_meshd()


@pytest.mark.any_machines
async def test_a_device_deleted_under_a_job_without_an_api(without_api: Lab, figure: Callable[[str], None]) -> None:
    """The machine has another address then: Slurm's line follows under the running job."""
    lab = without_api
    await lab.have(2)
    before = await lab.by_slot()
    job = await lab.sbatch(WAIT_FOR_WORD)
    slot = await lab.running(job)
    machine, old = before[slot]["machine"], before[slot]["address"]
    (other,) = set(before) - {slot}
    slurmd = await lab.inside(machine, "pgrep", "-x", "slurmd")
    event, reconfigures = await lab.last_event(), await lab.reconfigures()

    await lab.delete_device(machine)
    began = time.monotonic()
    await told(lab, machine, began, figure)

    async def back() -> dict[str, Any] | None:
        row = (await lab.by_slot())[slot]
        return row if row["address"] != old else None

    row = await lab.until(back, "it is back with another address")
    figure(f"it was back with another address after {time.monotonic() - began:.1f} s")
    new = row["address"]
    assert (row["machine"], row["phase"]) == (machine, "ready")

    async def in_slurm() -> bool:
        node = (await lab.slots())[slot]
        return node.address == new and bool(node.states & {"ALLOCATED", "MIXED"}) and len(node.states) == 1

    await lab.until(in_slurm, "Slurm has the new address, and reaches it")
    figure(f"Slurm reached it there after {time.monotonic() - began:.1f} s")

    async def in_the_file() -> bool:
        """Where Slurm's queue drives the pool, the file follows the address."""
        return await lab.reconfigures() == reconfigures + 1

    await lab.until(in_the_file, "one reconfigure follows")
    assert (await lab.job(job))["JobState"] == "RUNNING"
    assert await lab.inside(machine, "pgrep", "-x", "slurmd") == slurmd, "slurmd was not touched"

    async def in_hosts() -> bool:
        return new in await lab.inside(before[other]["machine"], "cat", "/etc/hosts")

    await lab.until(in_hosts, "the other node knows its new address")
    await lab.inside(machine, "touch", f"/tmp/end-{job}")
    await completed(lab, job)
    assert sorted((await lab.srun("-N2", "--gpus=2", "printenv", "SLURMD_NODENAME")).split()) == sorted(before)
    first, *later = await device_events(lab, machine, event)
    assert "was deleted, and aws says that the machine runs" in first
    assert [text for text in later if f"replaced: {new} instead of {old} (without an API credential" in text]
    await nothing_wrong(lab, machine)
    assert {row["machine"] for row in (await lab.by_slot()).values()} == {row["machine"] for row in before.values()}
