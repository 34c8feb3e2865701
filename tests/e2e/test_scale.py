"""Up and down: the cloud, the tailnet and Slurm agree at each end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

GPU = re.compile(r"GPU 0: NVIDIA \S+.* \(UUID: (GPU-[-0-9a-f]+)\)")


@pytest.mark.parametrize("cloud", ["aws", "lambda"])
async def test_two_machines_come_work_and_go(lab: Lab, cloud: str, figure: Callable[[str], None]) -> None:
    ever = len(lab.ledger(cloud))
    up = await lab.scale(2, "--provider", cloud)
    assert up["outcome"] == "reached"
    figure(f"{cloud}: 2 machines from nothing to READY in {up['elapsed_s']:.1f} s")

    rows = {row["machine"]: row for row in (await lab.ask("nodes"))["nodes"]}
    assert {row["phase"] for row in rows.values()} == {"ready"}
    assert {row["provider"] for row in rows.values()} == {cloud}
    assert {machine.token for machine in lab.alive(cloud)} == set(rows) == await lab.devices()
    slots = await lab.slots()
    for row in rows.values():
        assert slots[row["slot"]].address == row["address"]
        assert slots[row["slot"]].states == {"IDLE"}
    assert await lab.joined_slots() == {row["slot"] for row in rows.values()}

    began = time.monotonic()
    said = await lab.srun("-N2", "--gpus-per-node=1", "nvidia-smi", "-L")
    figure(f"{cloud}: srun on both as an ordinary user in {time.monotonic() - began:.1f} s")
    assert len(set(GPU.findall(said))) == 2, said

    down = await lab.scale(0)
    figure(f"{cloud}: back to nothing in {down['elapsed_s']:.1f} s")
    await lab.nothing_left()
    assert [machine.end for machine in lab.ledger(cloud)[ever:]] == ["asked", "asked"]


async def test_a_burst_is_few_reconfigures(lab: Lab, figure: Callable[[str], None]) -> None:
    before = await lab.reconfigures()
    up = await lab.scale(8, timeout_s=150)
    reconfigures = await lab.reconfigures() - before
    figure(f"8 machines READY in {up['elapsed_s']:.1f} s with {reconfigures} reconfigures")
    assert 1 <= reconfigures <= 3
    assert len(lab.alive()) == 8
    assert len(await lab.joined_slots()) == 8
    said = await lab.srun("-N8", "--gpus-per-node=1", "nvidia-smi", "-L")
    assert len(set(GPU.findall(said))) == 8, said

    before = await lab.reconfigures()
    down = await lab.scale(0, timeout_s=120)
    reconfigures = await lab.reconfigures() - before
    figure(f"8 machines given back in {down['elapsed_s']:.1f} s with {reconfigures} reconfigures")
    assert 1 <= reconfigures <= 3
