"""An owned machine that sleeps: Slurm's power saving wakes it for a job, and puts it to sleep again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from deploy.sandbox.mirror import Mirror, ensure_mirror
from deploy.sandbox.owned import OwnedMachine
from tests.e2e.lab import Lab

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # tests/unit/daemon/hosts and test_owned.py prove the parts
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]

TABLES = """\
[pools.h100]
gpu = "h100"
gpus_per_node = 1
max_nodes = 4
cpus_min = 1
memory_min_mib = 1024
default = true
spot = "never"
idle_timeout_s = 5
providers = ["static", "aws"]

[providers.static]
"""
WOKEN = "/var/lib/meshd/woken"
ASLEEP = "/run/asleep"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def owners(booted: Lab) -> AsyncIterator[Lab]:
    """The cluster, which takes owned machines, and an archive for what they lack."""
    async with (
        booted.enabled("aws", pools=TABLES, key_mode=""),
        Mirror(booted.cluster.world.network, await ensure_mirror("trixie")),
    ):
        yield booted


async def test_a_job_wakes_a_host_and_its_idle_time_puts_it_to_sleep(
    owners: Lab, lab: Lab, figure: Callable[[str], None]
) -> None:
    attic = OwnedMachine(lab.cluster.world, "attic")
    await attic.boot()
    invited = await lab.meshctl(
        "invite", "--pool", "h100", "--name", "attic", "--output", "-", "--wake-command", f"touch {WOKEN}",
        "--sleep-command", f"touch {ASLEEP}",
    )  # fmt: skip
    assert invited.returncode == 0, invited
    redeemed = await attic.redeem(invited.stdout.decode())
    assert redeemed.returncode == 0, redeemed

    async def state() -> Any:
        rows = (await lab.ask("hosts"))["hosts"]
        return next((row["state"] for row in rows if row["name"] == "attic"), "forgotten")

    def is_(wanted: str) -> Callable[[], Any]:
        async def look() -> bool:
            return await state() == wanted

        return look

    async def on_head() -> bool:
        return (await lab.head.run("test", "-e", WOKEN, check=False)).returncode == 0

    async def on_attic() -> bool:
        return (await attic.run("test", "-e", ASLEEP, check=False)).returncode == 0

    await lab.until(is_("free"), "attic has come, and nobody needs it")
    attic.pause()
    try:
        await lab.until(is_("asleep"), "attic sleeps", 90)
        job = await lab.sbatch("#!/bin/sh\nhostname\n", "-w", "h100-1")
        await lab.until(on_head, "the head has run the wake command", 60)
        assert await state() == "waking"
    finally:
        attic.resume()
    done = await lab.completed(job)
    assert done["NodeList"] == "h100-1"
    assert [(row["provider"], row["slot"]) for row in (await lab.nodes()).values()] == [("static", "h100-1")]
    assert not lab.alive("aws"), "nothing was rented"
    await lab.until(on_attic, "it is told to sleep when it is idle", 90)
    assert await lab.nodes() == {} or {row["phase"] for row in (await lab.nodes()).values()} == {"terminating"}
    attic.pause()
    try:
        await lab.until(is_("asleep"), "attic sleeps again", 120)
        assert (await lab.meshctl("remove", "--force", "--yes", "attic")).returncode == 0
        await lab.until(is_("forgotten"), "who is away is not waited for", 60)
    finally:
        attic.resume()
        await attic.destroy()
