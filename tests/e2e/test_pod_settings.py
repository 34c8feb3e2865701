"""A head with the settings that suit machines: pods run under it with their own, and say what jobs lack there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from deploy.sandbox.headmachine import CGROUP_CONF
from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

CLOUD = "runpod"
SETTINGS = """
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
JobAcctGatherType=jobacct_gather/cgroup
"""
GROUPS = "ConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"
LACKS = ["process_tracking", "core_limits", "memory_limits", "device_limits", "accounting"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def grouped(booted: Lab) -> AsyncIterator[Lab]:
    """Pods alone, and a head that asks for control groups. The sandbox's machines have none, and no pod's library."""
    head = booted.cluster.head
    async with booted.enabled(CLOUD, "aws"):
        slurm_conf = (await head.run("cat", "/etc/slurm/slurm.conf")).text
        try:
            await head.write("/etc/slurm/slurm.conf", slurm_conf + SETTINGS)
            await head.write("/etc/slurm/cgroup.conf", GROUPS)
            await head.run("systemctl", "restart", "slurmctld")
            yield booted
        finally:
            await head.write("/etc/slurm/slurm.conf", slurm_conf + "\n")
            await head.write("/etc/slurm/cgroup.conf", CGROUP_CONF)
            await head.run("systemctl", "restart", "slurmctld")


async def test_pods_under_a_head_with_control_groups(grouped: Lab, lab: Lab) -> None:
    await lab.want(2, "--provider", CLOUD)
    rows = await lab.ready(2)
    assert [row["lacks"] for row in rows.values()] == [LACKS, LACKS]
    slots = sorted(row["slot"] for row in rows.values())
    assert sorted((await lab.srun("-N2", "printenv", "SLURMD_NODENAME")).split()) == slots
    checks = await lab.checks()
    assert checks["node limits"]["code"] == "node_without_limits"

    await lab.head.run("scontrol", "reconfigure")

    async def runs() -> bool:
        # On these nodes: while one does not answer, Slurm would power up another slot.
        words = ("srun", "--immediate=2", "-w", ",".join(slots), "printenv", "SLURMD_NODENAME")
        ran = await lab.head.run(*words, timeout_s=60, check=False)
        return sorted(ran.text.split()) == slots

    await lab.until(runs, "a step over both after a reconfigure")
    for row in rows.values():
        plugins = await lab.inside(
            row["machine"], "grep", "-h", "^ProctrackType", "/var/spool/slurmd/conf-cache/slurm.conf"
        )
        assert plugins.splitlines()[-1] == "ProctrackType=proctrack/linuxproc"
