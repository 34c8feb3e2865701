"""The head as a node of its own cluster, with what `meshctl init` writes, against real Slurm of two versions.

One slurmctld and two slurmds: on the head, and on a machine in a slot of a pool. tests/e2e has one that is rented for a
job.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.node.meshd_node.parse import slurmd_c
from meshd.model.hardware import GpuFact, NodeShape
from meshd.model.observed import SlurmNode
from meshd.runtime.rootfs import RootFs
from meshd.slurm.capabilities import parse_version
from meshd.slurm.client import SlurmClient
from meshd.slurm.headfiles import put
from meshd.slurm.init.apply import apply_init
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.types import HeadCompute, InitInput
from meshd.slurm.nodes import JoinedNode, PoolLine, render
from tests.integration.slurm_lab import CONF, NETWORK, QUICK_START, START_S, Host, Lab
from tests.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces"),
]

POOL = PoolLine("h100", "", 2, "h100", 2, 1, 500)
KEPT_MIB = 300
SITE = """\
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
NodeSet=rented Feature=h100
PartitionName=both Nodes=head,rented
"""
"""The last two lines: a partition over the head and a pool, as docs/workstation.md has it."""

HET_AT_ONCE = "bf_interval=1"
"""Only the backfill scheduler starts heterogeneous jobs: by default every 30 s."""

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")

ENDS = "until [ -e /tmp/go ]; do sleep 0.2; done"


@dataclass
class Cluster:
    """The head and a machine."""

    lab: Lab
    client: SlurmClient
    shape: NodeShape

    @property
    def head(self) -> Host:
        return self.lab.hosts["head"]

    def sbatch(self, script: str, *options: str) -> str:
        return self.head.call("sbatch", "--parsable", "-o", "/tmp/out-%j", "--wrap", script, *options).strip()

    async def node(self, name: str) -> SlurmNode:
        return (await self.client.view()).nodes[name]

    async def job_until(self, job_id: str, state: str) -> None:
        """Wait until the job, or each part of a heterogeneous one, is so."""

        async def now() -> set[str]:
            shown = self.head.call("scontrol", "show", "job", job_id, "-o").split()
            return {word.partition("=")[2] for word in shown if word.startswith("JobState=")}

        await until(now, lambda seen: seen == {state}, f"job {job_id} is {state}", START_S)

    async def written(self, host: str, job_id: str, words: list[str]) -> None:
        """Wait until the job's output on this host has these words, in any order."""

        async def now() -> list[str]:
            return sorted(self.lab.hosts[host].call("cat", f"/tmp/out-{job_id}", check=False).split())

        await until(now, lambda seen: seen == sorted(words), f"the output of {job_id} on {host}", START_S)

    def write_slots(self, joined: str) -> None:
        """meshd's files, with the machine in this slot."""
        gpus = tuple(GpuFact(i, "NVIDIA H100", f"GPU-{i}", 81559, f"/dev/nvidia{i}") for i in range(2))
        machine = JoinedNode(joined, self.lab.hosts["m1"].address, self.shape, gpus)
        text = render([POOL], [machine], shapes_fixed=True)
        put(self.head.files_dir, text.nodes_conf, text.gres_conf)

    def shown(self, name: str) -> dict[str, str]:
        words = self.head.call("scontrol", "show", "node", name, "-o").split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@pytest.fixture(params=["bookworm", "trixie"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    images = pytest.importorskip("deploy.sandbox.images", reason="no images here")
    lab = Lab(str(asyncio.run(images.ensure_base(request.param))), tmp_path / "lab", suite=request.param)
    try:
        lab.start(["head", "m1"])
        yield lab
    finally:
        lab.close()


async def begun(lab: Lab, site: str = SITE, machines: tuple[str, ...] = ("h100-1",)) -> Cluster:
    """What `meshctl init` writes is in force, and slurmd has registered."""
    head = lab.hosts["head"]
    shape = NodeShape(**slurmd_c(head.call("slurmd", "-C")))
    gpus = tuple(GpuFact(i, "NVIDIA GeForce RTX 4090", f"GPU-{i}", 24564, f"/dev/nvidia{i}") for i in range(2))
    before = CONF.replace(QUICK_START, f"{QUICK_START},{HET_AT_ONCE}") + site
    compute = HeadCompute(on=True, shape=shape, found=gpus, gpus=(1,), mem_spec_limit_mib=KEPT_MIB)
    have = InitInput(
        "lab", "head", head.address, before, cgroup_conf=(head.conf_dir / "cgroup.conf").read_text(),
        pools=(POOL,), version=parse_version(head.call("slurmctld", "-V")), compute=compute, slurm_user="slurm",
    )  # fmt: skip
    (head.conf_dir / "slurm.conf").write_text(before)
    apply_init(plan_init(have), datetime.now(UTC), RootFs(Path(f"/proc/{head.pid}/root")))
    made = Cluster(lab, SlurmClient(head.runner, 20.0), shape)
    made.write_slots("h100-1")
    head.start_slurmctld()
    head.start_slurmd()
    for slot in machines:
        lab.hosts["m1"].start_slurmd("--conf-server", f"{NETWORK}.1:6817", "-N", slot)
    for name in ("head", *machines):
        await until(lambda name=name: made.node(name), lambda node: node.up, f"{name} is up", START_S)
    return made


@pytest_asyncio.fixture
async def cluster(lab: Lab) -> Cluster:
    lab.hosts["head"].without_cgroups()
    return await begun(lab)


@pytest.fixture
def memory_groups(lab: Lab) -> Iterator[None]:
    """The head has the memory control groups of this machine; what Slurm makes there goes with the test."""
    place = MEMORY_GROUPS / "slurm_head"
    if not (MEMORY_GROUPS / "release_agent").exists() or place.exists():
        pytest.skip("this machine has no memory control groups of the first version, or Slurm's are there")
    there = "mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory"
    lab.hosts["head"].call("sh", "-ec", f"{there} && mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory")
    yield
    lab.close()
    for directory in sorted([*place.rglob("*/"), *([place] if place.exists() else [])], reverse=True):
        directory.rmdir()


async def test_the_head_computes_alone_and_with_a_rented_machine(cluster: Cluster) -> None:
    head, shown = cluster.head, cluster.shown("head")
    assert shown["Gres"] == "gpu:rtx-4090:1"
    cores = cluster.shape.cores_per_socket * cluster.shape.sockets_per_board
    assert shown["CoreSpecCount"] == str(min(1, cores - 1))
    assert shown["MemSpecLimit"] == str(KEPT_MIB)
    assert not (await cluster.node("head")).cloud

    # Alone: it starts at once; what is kept for the desktop, no job gets.
    where = "echo $(hostname) ${CUDA_VISIBLE_DEVICES-none}"
    assert head.call("srun", "-p", "head", "--gpus=1", "sh", "-c", where) == "head 0\n"
    most = int(shown["RealMemory"])
    for too_much in (("--gpus=2",), (f"--mem={most - KEPT_MIB + 1}",), ("-c", str(cores))):
        said = head.said("sbatch", "-p", "head", *too_much, "--wrap", "true")
        assert "Requested node configuration is not available" in said, too_much
    assert head.call("srun", "-p", "head", f"--mem={most - KEPT_MIB}", "hostname") == "head\n"

    # The head first, where a job leaves it open; a rented machine when the head is taken.
    first = cluster.sbatch(ENDS, "-p", "h100,head", "--gpus=1")
    await cluster.job_until(first, "RUNNING")
    assert (await cluster.node("head")).held
    second = cluster.sbatch("srun hostname; " + ENDS, "-p", "h100,head", "--gpus=1")
    await cluster.job_until(second, "RUNNING")
    assert (await cluster.node("h100-1")).held
    await cluster.written("m1", second, ["m1"])  # a step that begins while slurmctld restarts waits long

    # slurmctld ends and comes back: both go on.
    await asyncio.to_thread(head.stop, "slurmctld")
    await asyncio.to_thread(head.start_slurmctld)
    for host in ("head", "m1"):
        cluster.lab.hosts[host].call("touch", "/tmp/go")
    for job in (first, second):
        await cluster.job_until(job, "COMPLETED")

    # One job over both, with its steps' input and output: from the head, from a batch script on the head and from one
    # on the machine; in one partition, and as a heterogeneous job.
    both = ("-p", "both", "-N2", "--ntasks-per-node=1")
    assert sorted(head.call("srun", *both, "-l", "hostname").split()) == ["0:", "1:", "head", "m1"]
    batch = cluster.sbatch("echo begins on $(hostname); echo in | srun -i 0 sh -c 'cat; hostname'", *both)
    await cluster.job_until(batch, "COMPLETED")
    (written,) = [
        text for host in ("head", "m1")
        if (text := cluster.lab.hosts[host].call("cat", f"/tmp/out-{batch}", check=False))
    ]  # fmt: skip
    assert sorted(written.split()[3:]) == ["head", "in", "m1"], written
    hetero = head.call("srun", "-p", "h100", "-n1", "--gpus=2", "hostname", ":", "-p", "head", "-n1", "hostname")
    assert sorted(hetero.split()) == ["head", "m1"]
    away = cluster.sbatch(
        "echo begins on $(hostname); srun --het-group=0,1 hostname",
        "-p", "h100", "-n1", ":", "-p", "head", "-n1",
    )  # fmt: skip
    await cluster.job_until(away, "COMPLETED")
    await cluster.written("m1", away, ["begins", "on", "m1", "m1", "head"])


async def test_only_people_drain_it_and_power_saving_leaves_it_alone(cluster: Cluster) -> None:
    head = cluster.head
    assert (await cluster.client.view()).suspend_exc == {"head"}
    head.call("scontrol", "update", "nodename=head", "state=drain", "reason=a game")
    waits = cluster.sbatch("true", "-p", "head")
    cluster.write_slots("h100-2")
    head.call("scontrol", "reconfigure")
    await asyncio.to_thread(head.stop, "slurmctld")
    await asyncio.to_thread(head.start_slurmctld)
    node = await until(lambda: cluster.node("head"), lambda seen: seen.up, "slurmd has registered again", START_S)
    assert (node.drained, node.reason) == (True, "a game")
    await cluster.job_until(waits, "PENDING")
    head.call("scontrol", "update", "nodename=head", "state=resume")
    await cluster.job_until(waits, "COMPLETED")


async def test_a_greedy_job_ends_and_leaves_the_desktop_its_memory(memory_groups: None, lab: Lab) -> None:
    head = lab.hosts["head"]
    (head.conf_dir / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\n")
    await begun(lab, SITE.replace("TaskPlugin=task/none", "TaskPlugin=task/cgroup"), ())
    takes = "head -c {}M /dev/zero | tail -c 1M | wc -c"
    hold = "head -c {}M /dev/zero | tail | wc -c"
    assert head.call("srun", "-p", "head", "--mem=200", "sh", "-c", takes.format(600)) == f"{2**20}\n"
    said = head.said("srun", "-p", "head", "--mem=200", "sh", "-c", hold.format(600))
    assert "oom" in said.lower(), said
    assert head.call("srun", "-p", "head", "--mem=200", "sh", "-c", hold.format(50)) == f"{50 * 2**20}\n"
    assert head.alive("slurmd")
    limit = MEMORY_GROUPS / "slurm_head/system/memory.limit_in_bytes"
    assert int(limit.read_text()) == KEPT_MIB * 2**20, "slurmd itself keeps to what no job gets"
