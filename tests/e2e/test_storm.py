"""Slurm's queue drives three pools through a storm of refusals, cancels and kills; what Slurm wanted is what came."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from tests.e2e.lab import QUICK, Lab
from tests.e2e.storm import (
    FORGOTTEN,
    Observer,
    Storm,
    allocations,
    bill,
    doubled,
    forgotten,
    given_up,
    pools_toml,
    unsaved,
    without_reason,
)

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

COOLDOWN = {"no_capacity_cooldown_s": 6.0, "no_capacity_cooldown_max_s": 12.0}
WASTE_MAX_S = 15.0
"""Slurm looks at waiting jobs every 5 s here, and a restart of slurmctld begins that anew."""
LOST_END_S = 240
"""Until a job's nodes are free again whose end a killed slurmctld had forgotten: `UNSEEN_FOR` of meshd.plan.lost_jobs,
a tick, and Slurm's own answer. Jobs of seconds make such an end likely; other jobs wait for those nodes meanwhile."""

PAID_MAX, PAID_MAX_IN_STORM = 2.0, 2.5
"""Machine-seconds for each one of somebody who knows all jobs ahead. A machine is kept for 6 s without a job."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pools(booted: Lab) -> AsyncIterator[Lab]:
    """The cluster with three pools, each in a cloud of its own, that Slurm's queue drives."""
    timing = {**QUICK, **COOLDOWN}
    web = '[web]\nenabled = true\nallow = ["tag:meshd"]\n'
    async with (
        booted.enabled("aws", "gce", "lambda", pools=pools_toml({}), timing=timing, slurm_settings="") as lab,
        lab.also(web),
    ):
        yield lab


async def survive(
    lab: Lab, seed: int, jobs: int, pause_s: float, rage_s: float | None, figure: Callable[[str], None]
) -> None:
    """A storm and the calm after it; then all that was seen is judged. Without `rage_s` the same jobs come in calm."""
    await lab.begin(f"storm {seed}")
    since, event = await _log_size(lab), await lab.last_event()
    ever = {cloud: len(lab.ledger(cloud)) for cloud in lab.cluster.clouds.clouds}
    began = time.monotonic()
    observer = Observer(lab)
    storm = Storm(lab, observer, seed)
    looking = asyncio.create_task(observer.run())
    raging = asyncio.create_task(storm.rage(rage_s)) if rage_s is not None else None
    try:
        await storm.submit(jobs, pause_s)
    finally:
        if raging:
            raging.cancel()
            await asyncio.gather(raging, return_exceptions=True)
    calm_s = time.monotonic() - began
    await storm.calm()

    async def over() -> bool:
        await storm.release()
        return observer.ended()

    await lab.until(over, "all jobs have ended", 180 + 2 * jobs + LOST_END_S * storm.done["kill_slurmctld"])
    await lab.nothing_left()
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    took_s = time.monotonic() - began

    ended = Counter(seen.last["JobState"] for seen in observer.jobs.values())
    events = await lab.events(event)
    sent_back = Counter(e["text"].split()[1] for e in events if " is back in the queue" in e["text"])
    machines = [m for cloud, count in ever.items() for m in lab.ledger(cloud)[count:]]
    sums = bill(machines, observer.jobs)
    longest = max(observer.waste.values(), key=lambda waste: waste.longest_s)
    figure(
        f"{jobs} jobs in {took_s:.0f} s ({calm_s:.0f} s of storm): {dict(ended)}; {dict(storm.done)}; "
        f"{sum(sent_back.values())} sent back; {sums.machines} machines, at most {observer.most_alive} at once"
    )
    figure(
        f"machine-seconds: paid {sums.paid_s:.0f}, jobs ran {sums.work_s:.0f}, clairvoyant {sums.clairvoyant_s:.0f} "
        f"(boot {sums.boot_s:.1f} s); idle while a job waits: {sum(w.total_s for w in observer.waste.values()):.1f} s, "
        f"longest {longest.longest_s:.1f} s {longest.about}"
    )
    by_slurm = storm.released + await forgotten(lab, since)
    figure(
        f"machine-seconds paid for each of the clairvoyant's: {sums.paid_s / sums.clairvoyant_s:.2f}; "
        f"queued again since a killed slurmctld had forgotten them: {sum(by_slurm.values())}"
    )
    evidence = await lab.evidence()
    assert not by_slurm or storm.done["kill_slurmctld"], f"{by_slurm}\n{evidence}"
    never_saved = await unsaved(lab, since)
    assert storm.done["kill_slurmctld"] or not never_saved
    lost = {
        name: dict(seen.last)
        for name, seen in observer.jobs.items()
        if seen.last["JobState"] != "COMPLETED"
        and not (seen.last["JobState"] == "CANCELLED" and seen.cancelled)
        and not (seen.last["JobState"] == FORGOTTEN and name in never_saved)
    }
    assert not lost, f"{lost}\n{evidence}"
    again = sent_back + by_slurm
    restarts = {name: seen.restarts for name, seen in observer.jobs.items() if seen.restarts > again[name]}
    assert not restarts, f"jobs restarted more often than meshd sent them back: {restarts}, {again}\n{evidence}"
    twice = doubled(machines, given_up(events))
    assert not twice, f"{twice}\n{evidence}"
    needless = without_reason(machines, observer, await allocations(lab, since))
    assert not needless, f"{needless}\n{evidence}"
    assert longest.longest_s < WASTE_MAX_S, f"{longest}\n{evidence}"
    most = PAID_MAX if rage_s is None else PAID_MAX_IN_STORM
    assert sums.paid_s <= most * sums.clairvoyant_s, f"{sums}\n{evidence}"


async def _log_size(lab: Lab) -> int:
    return int(await lab.head.shell("stat -c %s /var/log/slurm/slurmctld.log"))


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_a_small_storm(pools: Lab, figure: Callable[[str], None]) -> None:
    await survive(pools, 1, 24, 2.0, 4.0, figure)


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_the_jobs_of_the_small_storm_in_a_calm(pools: Lab, figure: Callable[[str], None]) -> None:
    """What the same jobs cost without the storm."""
    await survive(pools, 1, 24, 2.0, None, figure)


@pytest.mark.nightly
@pytest.mark.timeout(3500)
async def test_200_jobs(pools: Lab, figure: Callable[[str], None]) -> None:
    await survive(pools, 2, 200, 1.2, 4.0, figure)
