"""What `meshctl simulate` says of a week, beside what the sandbox then does in it.

A day of the week is a minute of the sandbox, so the load has a boot of some seconds where a week has hours: what is
tested is what follows from jobs, slots, idle times and bills, with the boots as the sandbox has them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e import week
from tests.e2e.lab import QUICK, Lab
from tests.e2e.week import FASTER, POOLS, Sums
from tests.e2e.workplace import accounting

pytestmark = [
    pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.nightly, pytest.mark.timeout(1800),
]  # fmt: skip

OFFERS = ("--offers", "/tmp/offers.json")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pools(booted: Lab) -> AsyncIterator[Lab]:
    """The cluster with two pools in two clouds, which bill in different ways, and with records of jobs."""
    async with booted.enabled("aws", "lambda", pools=POOLS, timing=QUICK) as lab, accounting(lab):
        yield lab


ALL, POOL = 0.10, 0.15
"""How far machine-seconds and USD may differ: of all pools, and of one, where a machine more or less weighs more."""
MACHINES = 0.15
MACHINES_OF_THE_WEEK = 0.35
"""meshd reads Slurm every 5 s. By the clock of the sandbox that is two hours of the week, in which a machine is kept
and often gets the next job; in the week it is 5 s. So the week needs more machines, for less time each."""
WAIT_S, WAIT, WAIT_OF_POOL = 2.5, 0.25, 0.35
"""How far the mean wait may differ. Slurm looks at waiting jobs every 5 s here, 2.5 s in the mean, which the simulation
does not know. On a busy host it starts jobs late, and Lambda's calls are seconds apart."""


def check(said: Mapping[str, Sums], was: Mapping[str, Sums], machines: float = MACHINES) -> None:
    """Whether a simulation said what the sandbox did."""
    for pool, within, wait in (("h100", POOL, WAIT_OF_POOL), ("l", POOL, WAIT_OF_POOL), ("", ALL, WAIT)):
        assert said[pool].machines == pytest.approx(was[pool].machines, rel=machines, abs=2), pool
        assert said[pool].machine_s == pytest.approx(was[pool].machine_s, rel=within), pool
        assert said[pool].usd == pytest.approx(was[pool].usd, rel=within), pool
        assert said[pool].wait_mean_s == pytest.approx(was[pool].wait_mean_s, rel=wait, abs=WAIT_S), pool


async def test_a_week(pools: Lab, figure: Callable[[str], None], tmp_path: Path) -> None:
    lab = pools
    await lab.begin("a week")
    offers = (await lab.meshctl("offers", "--all", "-n", "100000", "-o", "json")).stdout.decode()
    lived = await week.live(lab)
    week.keep(tmp_path, lived)
    (tmp_path / "offers.json").write_text(offers)
    settings = (await lab.head.run("cat", "/etc/meshd/meshd.toml")).stdout.decode()
    (tmp_path / "meshd.toml").write_text(settings)
    billed, rented = lived.sums(billed=True), lived.sums(billed=False)
    low_s, high_s = lived.boot_s
    cloud = f'[cloud]\nboot = ["{low_s}s", "{high_s}s"]\n'
    slow = (low_s * FASTER, high_s * FASTER)
    files = {
        "offers.json": offers, "dump": lived.dump, "cloud.toml": cloud,
        "minutes.toml": week.load_toml(FASTER, lived.boot_s), "week.toml": week.load_toml(1.0, slow),
        "slow.toml": week.slowly(settings),
    }  # fmt: skip
    by_dump = await week.simulated(lab, files, "--sacct", "/tmp/dump", "--faults", "/tmp/cloud.toml", *OFFERS)
    by_load = await week.simulated(lab, {}, "--load", "/tmp/minutes.toml", *OFFERS)
    whole = await week.simulated(lab, {}, "--load", "/tmp/week.toml", *OFFERS, config="/tmp/slow.toml", faster=FASTER)
    figure(f"{len(lived.lines())} jobs; boots {low_s:.1f} to {high_s:.1f} s")
    for pool in ("h100", "l", ""):
        figure(f"{pool or 'all'}: the clouds billed      {billed[pool]}")
        figure(f"{pool or 'all'}: simulate of the dump   {by_dump[pool]}")
        figure(f"{pool or 'all'}: simulate of the load   {by_load[pool]}")
        figure(f"{pool or 'all'}: the clouds rented      {rented[pool]}")
        figure(f"{pool or 'all'}: simulate of the week   {whole[pool]}")
    check(by_dump, billed)
    check(by_load, billed)
    check(whole, rented, MACHINES_OF_THE_WEEK)
