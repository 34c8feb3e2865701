"""A container ends, or its cloud stops the pod: with its old files it is the same node, with new ones it is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from deploy.sandbox.clouds.ledger import Ledger
from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

CLOUD = "runpod"
SILENT_S = 10.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pods(booted: Lab) -> AsyncIterator[Lab]:
    async with booted.enabled("aws", CLOUD) as lab:
        yield lab


@pytest.fixture
def mine(pods: Lab, lab: Lab) -> Lab:
    """The same, with 0 GPUs and no faults."""
    assert pods is lab
    return lab


def cloud(lab: Lab) -> Ledger:
    return lab.cluster.clouds.clouds[CLOUD].ledger


async def one_node(lab: Lab) -> dict[str, Any]:
    """The one machine, READY, in which a job has run."""
    (row,) = (await lab.ready(1)).values()
    assert (await lab.srun("hostname")).strip() == row["slot"]
    return row


async def first_process(lab: Lab, machine: str) -> str:
    """When the container's first process started; "" while there is none."""
    return (await lab.inside(machine, "sh", "-c", "cut -d' ' -f22 /proc/1/stat", check=False)).strip()


async def test_a_container_that_starts_again_is_the_same_node(mine: Lab, figure: Callable[[str], None]) -> None:
    lab = mine
    await lab.want(1, "--provider", CLOUD)
    before = await one_node(lab)
    (machine,) = lab.alive(CLOUD)
    began = await first_process(lab, before["machine"])
    words = ("srun", "--overlap", "sh", "-c", "echo runs; exec sleep 3600")
    step = asyncio.create_task(lab.head.run(*words, timeout_s=60, check=False))

    async def runs() -> bool:
        found = await lab.inside(before["machine"], "pgrep", "-fx", "sleep 3600", check=False)
        return bool(found.strip())

    await lab.until(runs, "a step runs")
    cloud(lab).restart(machine.id)
    begun = time.monotonic()

    async def restarted() -> bool:
        return await first_process(lab, before["machine"]) not in {"", began}

    await lab.until(restarted, "the container has started again")
    await step  # srun sees that it is gone, and does not wait for it

    async def job() -> bool:
        # On this node: while it does not answer, Slurm would power up another slot.
        words = ("srun", "--immediate=2", "-w", before["slot"], "hostname")
        ran = await lab.head.run(*words, timeout_s=60, check=False)
        return ran.text == before["slot"]

    await lab.until(job, "a job runs on it")
    figure(f"a job runs {time.monotonic() - begun:.1f} s after the restart")
    after = await one_node(lab)
    assert {key: after[key] for key in ("machine", "address", "slot")} == {
        key: before[key] for key in ("machine", "address", "slot")
    }
    assert [one.id for one in lab.alive(CLOUD)] == [machine.id]


async def test_a_pod_with_new_files_is_replaced(mine: Lab, figure: Callable[[str], None]) -> None:
    lab = mine
    await lab.timing(heartbeat_lost_s=SILENT_S)
    await lab.head.shell(f"echo SlurmdTimeout={SILENT_S:.0f} >>/etc/slurm/slurm.conf; scontrol reconfigure")
    await lab.want(1, "--provider", CLOUD)
    before = await one_node(lab)
    (machine,) = lab.alive(CLOUD)
    cloud(lab).stop(machine.id)
    cloud(lab).start(machine.id)
    begun = time.monotonic()

    async def replaced() -> bool:
        rows = await lab.nodes()
        return before["machine"] not in rows and [row["phase"] for row in rows.values()] == ["ready"]

    await lab.until(replaced, "another pod is in its place")
    figure(f"replaced {time.monotonic() - begun:.1f} s after its stop and start, {SILENT_S:g} s without a word of it")
    assert machine.id not in {one.id for one in lab.alive(CLOUD)}

    async def no_device_left() -> bool:
        return await lab.devices() == set(await lab.nodes())

    # With its new files it had joined the tailnet a second time, under the same name.
    await lab.until(no_device_left, "meshd has deleted both devices of the first pod")
    await lab.head.shell("sed -i /^SlurmdTimeout/d /etc/slurm/slurm.conf; scontrol reconfigure")
