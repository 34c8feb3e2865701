"""What was spent: beside the clouds' own bills, beside sacct, and at the limit of a budget."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from deploy.sandbox.clouds.server import BILLING
from deploy.sandbox.vendors import VENDORS
from meshd.codes import WarningCode
from tests.e2e.lab import Lab
from tests.e2e.workplace import accounting

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

CLOUDS = tuple(VENDORS)
TYPE = "gpu_1x_h100_sxm5"
LIVED_S = 150.0
"""So long that the second to which some clouds round the launch time is less than a hundredth."""
WITHIN = 0.01


async def cost(lab: Lab, by: str, since: str = "") -> Any:
    words = ["--since", since] if since else []
    return await lab.ask("cost", "--by", by, *words)


@pytest.mark.nightly
async def test_the_bills_of_all_clouds_and_sacct(booted: Lab, figure: Callable[[str], None]) -> None:
    async with booted.enabled(*CLOUDS) as lab, accounting(lab):
        since = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
        lab.room(**dict.fromkeys(CLOUDS, 1))
        up = await lab.scale(len(CLOUDS), "--spread")
        assert up["outcome"] == "reached"
        machines = {cloud: machine for cloud in CLOUDS for machine in lab.alive(cloud)}
        assert set(machines) == set(CLOUDS)

        jobs = [await lab.sbatch(f"sleep {seconds}", "--gpus-per-node=1", "--nodes=1") for seconds in (1, 7, 20)]
        jobs.append(await lab.sbatch("srun sleep 15", "--gpus-per-node=1", f"--gpus={len(CLOUDS)}", f"-N{len(CLOUDS)}"))
        for job in jobs:
            await lab.completed(job)

        # Lambda bills whole minutes: in the middle of one, a second more or less makes no difference.
        born = max(machine.created_at for machine in machines.values())
        await asyncio.sleep(max(0.0, LIVED_S - (datetime.now(UTC) - born).total_seconds()))
        age_s = (datetime.now(UTC) - machines["lambda"].created_at).total_seconds()
        await asyncio.sleep((30 - age_s) % 60)
        await lab.scale(0)

        async def gone() -> bool:
            return not lab.all_alive() and not await lab.nodes()

        await lab.until(gone, "all machines are gone")
        lab.room(**dict.fromkeys(CLOUDS, None))
        found = await cost(lab, "machine", since)
        ours = {row["key"]: row["usd"] for row in found["rows"]}
        # Machines that are over may be billed for a while yet: a cloud rounds their time up.
        now, sums = datetime.now(UTC), [0.0, 0.0]
        for cloud, machine in machines.items():
            billed = machine.billed_usd(now, BILLING[cloud])
            figure(f"{cloud}: billed {billed:.5f} USD, meshctl cost {ours[machine.token]:.5f} USD")
            assert ours[machine.token] == pytest.approx(billed, rel=WITHIN), cloud
            sums = [sums[0] + billed, sums[1] + ours[machine.token]]
        figure(f"all: billed {sums[0]:.5f} USD, meshctl cost {sums[1]:.5f} USD, {sums[1] / sums[0] - 1:+.3%}")
        providers = await cost(lab, "provider", since)
        assert sum(row["micro_usd"] for row in providers["rows"]) == providers["micro_usd"] == found["micro_usd"]

        text = await lab.head.run("sacct", "-anXP", "--format=jobid,elapsedraw,nnodes,nodelist")
        elapsed = {job: int(s) for job, s, *_ in (line.split("|") for line in text.text.splitlines())}
        by_job = await cost(lab, "job", since)
        assert by_job["jobs_by"] == "accounting"
        rows = {row["key"]: row for row in by_job["rows"]}
        for job in jobs:
            figure(f"job {job}: sacct {elapsed[job]} s, meshctl cost {rows[job]['gpu_hours'] * 3600:.0f} GPU-seconds")
        for job in jobs[:3]:
            assert rows[job]["gpu_hours"] * 3600 == pytest.approx(elapsed[job], abs=0.5)
            assert rows[job]["user"] == "alice"
        assert rows[jobs[3]]["gpu_hours"] * 3600 == pytest.approx(elapsed[jobs[3]] * len(CLOUDS), abs=1)
        prices = sum(machine.usd_per_hour for machine in machines.values())
        assert rows[jobs[3]]["usd"] == pytest.approx(prices * elapsed[jobs[3]] / 3600, rel=1e-3)
        assert by_job["micro_usd"] == sum(row["micro_usd"] for row in by_job["rows"]) == found["micro_usd"]
        assert rows[""]["kind"] == "idle"


async def test_a_budget_that_is_reached_in_the_middle_of_a_scale_up(lab: Lab, figure: Callable[[str], None]) -> None:
    """A USD more than what this month has cost here already, and machines that cost a third of one in ten minutes."""
    types = lab.cluster.clouds.lambda_cloud.types
    kind = types[TYPE]
    types[TYPE] = replace(kind, cents_per_hour=200)
    try:
        await lab.ask("offers", "--refresh")
        spent = (await cost(lab, "pool"))["month_usd"]
        began = time.monotonic()
        async with lab.also(f"[budget]\nusd_per_month = {spent + 1.0:.6f}\nwarn_at = 1.0\n"):
            answer = await lab.want(8, "--provider", "lambda")
            assert WarningCode.BUDGET in {finding["code"] for finding in answer["findings"]}
            assert [row["usd_per_hour"] for row in answer["plan"]["machines"]] == [2.0] * 3

            async def there() -> bool:
                return [row["phase"] for row in (await lab.nodes()).values()] == ["ready"] * 3

            await lab.until(there, "three machines are ready")
            assert WarningCode.BUDGET in await lab.problem_codes()
            assert "budget" in {row["rule"] for row in (await lab.ask("explain", "h100"))["next_rungs"]}
            await lab.kill_meshd()
            await lab.until(there, "nothing more is rented by the meshd that was started again")
            (row,) = (await cost(lab, "pool"))["budget"]
            assert row["spent_usd"] + row["promised_usd"] <= row["limit_usd"]
            figure(
                f"limit 1.00 USD: 3 of 8 machines at 2.00 USD/h, {row['spent_usd'] - spent:.4f} spent and "
                f"{row['promised_usd']:.4f} promised after {time.monotonic() - began:.0f} s"
            )
            assert len(lab.alive("lambda")) == 3

        async def more() -> bool:
            return len(lab.alive("lambda")) == 8

        await lab.until(more, "without the budget the rest is rented")
    finally:
        types[TYPE] = kind
        await lab.want(0)
        await lab.ask("offers", "--refresh")
