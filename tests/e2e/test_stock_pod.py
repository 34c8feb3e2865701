"""A pod on an image that has nothing of ours: stage 1 and the agent install and compile all that a node needs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from deploy.sandbox.mirror import Mirror, ensure_mirror
from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

OURS = "meshd/pod"
STOCK = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pods(booted: Lab) -> AsyncIterator[Lab]:
    timing = {**booted.cluster.options.timing, "join_timeout_s": 600.0}
    async with booted.enabled("aws", "runpod", timing=timing) as lab:
        yield lab


async def test_a_stock_image_becomes_a_node(pods: Lab, lab: Lab, figure: Callable[[str], None]) -> None:
    text = lab.settings_with()
    assert OURS in text
    assert await lab.write_settings(text.replace(OURS, STOCK)) == 0
    await lab.restart_meshd()
    async with Mirror(lab.cluster.world.network, await ensure_mirror("trixie")) as archives:
        begun = time.monotonic()
        await lab.want(1, "--provider", "runpod")
        (row,) = (await lab.ready(1, timeout_s=400)).values()
        figure(f"READY {time.monotonic() - begun:.0f} s after the order, {len(archives.asked)} files fetched")
    assert any(path.startswith("/debian/pool/slurmd_") for path in archives.asked)
    assert (await lab.srun("nvidia-smi", "-L")).startswith("GPU 0")
    assert await lab.inside(row["machine"], "cat", "/proc/1/comm") == "s6-svscan"
