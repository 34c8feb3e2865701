"""A head and a node with kernels of their own: everything of a cluster runs in them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from deploy.sandbox import images
from deploy.sandbox.clouds.host import BootDefaults
from deploy.sandbox.cluster import Cluster, ClusterOptions
from tests.e2e.lab import QUICK, SLURM, USER, Lab

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # test_real_kernels has such a node, and a head that starts in a tenth of the time
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0 or not images.has_uml(), reason="needs root and an amd64 processor"),
]

PATIENCE_S = 600.0


async def test_a_head_with_a_kernel_of_its_own_rents_such_a_node(figure: Callable[[str], None]) -> None:
    options = ClusterOptions(
        sandbox_id=f"kh{os.getpid() % 100000}", timing={**QUICK, "boot_timeout_s": 900.0}, key_mode="reusable",
        boot_s=0.2, end_s=0.2, slurm=SLURM, head_image="head-uml", cpus=1,
        pool="scale_from_queue = false",
    )  # fmt: skip
    begun = time.monotonic()
    async with Cluster(options) as cluster:
        lab = Lab(cluster)
        head = await cluster.bring_up_head()
        figure(f"the head is there after {time.monotonic() - begun:.0f} s")
        await head.run("useradd", "--create-home", USER)
        lab.boot(BootDefaults(image="trixie-uml"))
        await lab.want(1)
        await lab.ready(1, PATIENCE_S)
        figure(f"the node is ready after {time.monotonic() - begun:.0f} s")
        kernel = (await head.run("uname", "-r")).text
        assert kernel != os.uname().release
        assert await lab.srun("uname", "-r") == kernel
