"""A head with GPUs as a node of its own cluster: jobs get what they ask for, and control groups v2 hold them to it.

The head has a kernel of its own: that of this host may have the controllers in control groups of the first version. It
has one processor and no cpuset controller, so no core is kept for the desktop: tests/integration/test_head_compute.py
has CoreSpecCount, and a memory limit with control groups of the first version.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable

import pytest

from deploy.sandbox import images
from deploy.sandbox.cluster import Cluster, ClusterOptions
from tests.e2e.lab import QUICK, SLURM, USER, Lab

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # tests/integration/test_head_compute.py has the head's lines with real Slurm in each run
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0 or not images.has_uml(), reason="needs root and an amd64 processor"),
]

KEPT_MIB = 150
HEAD = f"[head]\ncompute = true\nmem_spec_limit_mib = {KEPT_MIB}\n"
PLUGINS = {
    "ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/affinity,task/cgroup",
    "SelectTypeParameters": "CR_Core_Memory",
}  # fmt: skip
CONSTRAINS = "ConstrainCores=yes\nConstrainRAMSpace=yes\nConstrainDevices=yes\n"
"""What docs/workstation.md asks of a slurm.conf and a cgroup.conf of one's own."""
DEVICES = """\
rm /dev/nvidia[01]
mknod -m 666 /dev/nvidia0 c 1 7
mknod -m 666 /dev/nvidia1 c 1 8
chmod 666 /dev/nvidiactl
"""
"""Rules for devices go by their numbers, so each GPU has others: those of /dev/full and /dev/random."""
TAKES = "head -c {}M /dev/zero | tail | wc -c"
NOT_AVAILABLE = "Requested node configuration is not available"


async def test_jobs_on_the_gpus_of_the_head(figure: Callable[[str], None]) -> None:
    options = ClusterOptions(
        sandbox_id=f"hg{os.getpid() % 100000}", timing=QUICK, key_mode="reusable", slurm=SLURM, head_image="head-uml",
        head_gpus=2,
    )  # fmt: skip
    begun = time.monotonic()
    async with Cluster(options) as cluster:
        lab, head = Lab(cluster), await cluster.bring_up_head()
        assert (await head.run("stat", "-f", "-c", "%T", "/sys/fs/cgroup")).text == "cgroup2fs"
        await head.run("useradd", "--create-home", USER)
        edits = [word for key, value in PLUGINS.items() for word in ("-e", f"s|^{key}=.*|{key}={value}|")]
        await head.run("sed", "-i", *edits, "/etc/slurm/slurm.conf")
        await head.write("/etc/slurm/cgroup.conf", CONSTRAINS)
        await head.shell(DEVICES)
        async with lab.also(HEAD):
            done = await lab.meshctl("init", "--yes", "-o", "json", timeout_s=240)
            assert done.returncode == 0, done.stderr.decode()
            said = json.loads(done.stdout)
            assert [one["code"] for one in said["findings"]] == ["head_trusts_nodes"], "nothing is unconstrained"
            for step in said["next"]:
                if not step.startswith("meshctl"):
                    await head.run(*step.split(), timeout_s=120)

            async def up() -> bool:
                view = await lab.get("nodes")
                return bool(view and view["head"] and view["head"]["up"] and view["head"]["gpus"] == 2)

            await lab.until(up, "the head is a node")
            figure(f"the head is a node after {time.monotonic() - begun:.0f} s")
            await _gpus(lab)
            await _memory(lab)


async def _gpus(lab: Lab) -> None:
    line = "NodeName=head Name=gpu Type=h100-sxm File=/dev/nvidia[0-1]"
    assert line in (await lab.head.run("cat", "/etc/slurm/gres.conf")).text.splitlines()
    one = await lab.srun("-p", "head", "--gres=gpu:1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L")
    assert one.startswith("0\nGPU 0: ") and one.count("UUID") == 1, "it cannot open the other one"
    assert (await lab.srun("-p", "head", "--gres=gpu:2", "nvidia-smi", "-L")).count("UUID") == 2
    assert "No devices were found" in (await lab.step("-p", "head", "nvidia-smi", "-L")).text
    assert NOT_AVAILABLE in (await lab.step("-p", "head", "--gres=gpu:3", "true")).stderr.decode()


async def _memory(lab: Lab) -> None:
    shown = (await lab.head.run("scontrol", "show", "node", "head", "-o")).text
    found = re.search(r" RealMemory=(\d+) ", shown)
    assert found and f" MemSpecLimit={KEPT_MIB} " in shown
    most = int(found[1]) - KEPT_MIB
    assert NOT_AVAILABLE in (await lab.step("-p", "head", f"--mem={most + 1}", "true")).stderr.decode()
    await lab.srun("-p", "head", f"--mem={most}", "true")

    greedy = await lab.step("-p", "head", "--mem=100", "sh", "-c", TAKES.format(300))
    assert "oom" in greedy.stderr.decode().lower()
    assert await lab.srun("-p", "head", "--mem=100", "sh", "-c", TAKES.format(20)) == str(20 * 2**20)
    assert (await lab.head.run("systemctl", "is-active", "slurmd")).text == "active"
    limit = (await lab.head.run("cat", "/sys/fs/cgroup/system.slice/slurmd.service/memory.max")).text
    assert int(limit) == KEPT_MIB * 2**20, "slurmd itself keeps to what no job gets"
