"""meshd is not removed from a head whose machines cost money."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deploy.sandbox.headmachine import SOURCE
from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


@pytest.mark.any_machines
async def test_meshd_stays_while_machines_are_rented(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.have(2)
    done = await lab.head.run(f"{SOURCE}/deploy/head/install", "--uninstall", check=False)
    figure(f"told: {done.text} {done.stderr.decode().strip()}")
    assert done.returncode == 1
    assert "meshctl scale --pool" in done.text
    for machine in await lab.nodes():
        assert machine in done.text
    assert (await lab.head.run("systemctl", "is-active", "meshd", "meshd-slurm.path")).text.split() == ["active"] * 2
    await lab.have(0)
