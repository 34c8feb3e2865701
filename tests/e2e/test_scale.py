"""Up and down: the cloud, the tailnet and Slurm agree at each end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.e2e.lab import GPU, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

METRICS = (
    'meshd_gpus_ready{pool="h100"} 8.0',
    'meshd_machines{phase="ready",pool="h100",provider="aws"} 8.0',
    'meshd_provider_calls_total{operation="launch",outcome="ok",provider="aws"}',
    'meshd_provider_breaker_open{provider="aws"} 0.0',
)


async def test_a_burst_is_few_reconfigures(form: str, lab: Lab, figure: Callable[[str], None]) -> None:
    before = await lab.reconfigures()
    up = await lab.scale(8)
    reconfigures = await lab.reconfigures() - before
    figure(f"{form}: 8 machines READY in {up['elapsed_s']:.1f} s with {reconfigures} reconfigures")
    # Where Slurm's queue drives the pool, an address is in force without one, and one follows for all.
    assert (1 if form == "by_hand" else 0) <= reconfigures <= 3
    assert len(lab.alive()) == 8
    assert len(await lab.joined_slots()) == 8
    said = await lab.srun("-N8", "--gpus-per-node=1", "nvidia-smi", "-L")
    assert len(set(GPU.findall(said))) == 8, said

    async def told() -> bool:
        metrics = await lab.metrics()
        return all(line in metrics for line in METRICS)

    await lab.until(told, "the metrics tell of 8 machines")

    before = await lab.reconfigures()
    down = await lab.scale(0)
    reconfigures = await lab.reconfigures() - before
    figure(f"{form}: 8 machines given back in {down['elapsed_s']:.1f} s with {reconfigures} reconfigures")
    assert (1 if form == "by_hand" else 0) <= reconfigures <= 3


async def test_a_machine_that_boots_while_slurm_still_switches_its_slot_off(lab: Lab) -> None:
    """slurmctld ignores what registers meanwhile, and slurmd says it once."""
    ready = asyncio.create_task(lab.have(1))

    async def rented() -> str | None:
        return next(iter(await lab.by_slot()), None)

    slot = await lab.until(rented, "a machine is rented")
    await lab.head.run("scontrol", "update", f"nodename={slot}", "state=power_down_force")
    await ready
    assert await lab.srun("-N1", "printenv", "SLURMD_NODENAME") == slot
