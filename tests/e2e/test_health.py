"""A node that Slurm drains by itself is told, diagnosed and replaced; one that a person drains is left alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


async def pool_of(lab: Lab) -> Any:
    (pool,) = [pool for pool in (await lab.status())["pools"] if pool["target_gpus"]]
    return pool


@pytest.mark.any_machines
async def test_an_unfit_node_is_told_diagnosed_and_replaced(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.have(1)
    (bad,) = await lab.nodes()
    (slot,) = await lab.by_slot()
    assert (await pool_of(lab))["ready_gpus"] == 1

    # A person's drain: shown, and nothing else.
    await lab.timing(unfit_grace_s=1.0)
    assert (await lab.meshctl("drain", slot, "--reason", "mine")).returncode == 0

    async def told(why: str) -> Any:
        row = (await lab.nodes())[bad]
        return row if row["unfit"] == why else None

    await lab.until(lambda: told("drained_by_person"), "the drain shows")
    pool = await pool_of(lab)
    assert (pool["ready_gpus"], pool["unfit"]) == (0, {"drained_by_person": 1})
    assert (await lab.meshctl("undrain", slot)).returncode == 0
    await lab.until(lambda: told(""), "it is fit again")

    # Slurm's own, as when a job's processes cannot be killed.
    began = time.monotonic()
    await lab.head.run("scontrol", "update", f"nodename={slot}", "state=drain", "reason=Kill task failed")
    row = await lab.until(lambda: told("drained"), "Slurm's drain shows")
    figure(f"a node that Slurm drained shows as unfit after {time.monotonic() - began:.1f} s")
    assert row["slurm_reason"] == "Kill task failed"
    health = (await lab.ask("explain", slot))["health"]
    assert (health["unfit"], health["slurmd_alive"], health["tailnet"].split()[0]) == ("drained", True, "online")
    assert health["log"], "slurmd's own words"
    assert bad in await lab.nodes(), "it has time to get well"
    await lab.timing(unfit_grace_s=1.0, replace_unfit_after_s=1.0)

    async def replaced() -> bool:
        rows = await lab.nodes()
        return bad not in rows and [one["phase"] for one in rows.values()] == ["ready"]

    await lab.until(replaced, "another machine is READY in its place")
    figure(f"another one was READY {time.monotonic() - began:.1f} s after the drain")
    assert (await pool_of(lab))["ready_gpus"] == 1
