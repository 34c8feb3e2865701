"""Slots that Slurm's power saving opens, against real slurmctlds of two versions: addresses, shapes, forms."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.node.meshd_node.parse import slurmd_c
from meshd.model.hardware import GpuFact, NodeShape
from meshd.model.observed import SlurmNode
from meshd.runtime.clock import SystemClock
from meshd.slurm.client import SlurmClient
from meshd.slurm.files import SlurmFiles
from meshd.slurm.headfiles import GRES, NODES, put
from meshd.slurm.node_addrs import settable_addrs
from meshd.slurm.nodes import JoinedNode, PoolLine, Rendered, render
from meshd.slurm.publish import Publisher
from meshd.slurm.read_back import is_placeholder
from tests.integration.slurm_lab import NETWORK, POWER_CONF, START_S, Host, Lab
from tests.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces"),
]

IMAGES = ("bookworm", "trixie")
BY_HAND = PoolLine("h100", "", 4, "h100", 2, 1, 500, ("fast",), default=True)
QUEUE = replace(BY_HAND, from_queue=True)
POWER = """
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
GresTypes=gpu
ResumeProgram=/bin/true
SuspendProgram=/bin/true
ResumeTimeout=120
SuspendTimeout=2
SuspendTime=864000
ResumeRate=0
SuspendRate=0
PrivateData=cloud
Include nodes.conf
"""


@dataclass
class Cluster:
    """A head with meshd's Publisher beside it, and two machines."""

    lab: Lab
    publisher: Publisher
    client: SlurmClient
    restarts: int = 0

    @property
    def head(self) -> Host:
        return self.lab.hosts["head"]

    @property
    def old(self) -> bool:
        return self.lab.suite == "bookworm"

    def wanted(self, *joined: JoinedNode, pool: PoolLine = QUEUE) -> Rendered:
        return render([pool], joined, shapes_fixed=self.old)

    def machine(self, host: str, slot: str, first_device: int = 0) -> JoinedNode:
        shape = NodeShape(**slurmd_c(self.lab.hosts[host].call("slurmd", "-C")))
        devices = tuple(
            GpuFact(i, "NVIDIA H100", f"GPU-{i}", 81559, f"/dev/nvidia{first_device + i}") for i in range(2)
        )
        return JoinedNode(slot, self.lab.hosts[host].address, shape, devices, ("lab",))

    def start_slurmd(self, host: str, slot: str) -> None:
        """A boot time later than the request to power up is what Slurm waits for (-b)."""
        self.lab.hosts[host].start_slurmd("-b", "--conf-server", f"{NETWORK}.1:6817", "-N", slot)

    def settable(self, wanted: Rendered) -> set[str]:
        applier = self.publisher.applier
        return set(settable_addrs(wanted, applier.nodes_conf, applier.gres_conf))

    def sbatch(self, *args: str) -> str:
        return self.head.call("sbatch", "--parsable", "-o", "/dev/null", *args).strip()

    async def node(self, slot: str) -> SlurmNode:
        return (await self.client.view()).nodes[slot]

    async def node_until(self, slot: str, states: str) -> SlurmNode:
        wanted = frozenset(states.split("+"))
        return await until(lambda: self.node(slot), lambda node: wanted <= node.states, f"{slot} is {states}", START_S)

    async def job(self, job_id: str) -> str:
        return next((job.state for job in (await self.client.view()).jobs if job.id == job_id), "GONE")

    async def job_until(self, job_id: str, state: str) -> None:
        await until(lambda: self.job(job_id), lambda now: now == state, f"job {job_id} is {state}", START_S)

    def never_requeued(self, job_id: str) -> bool:
        return "Restarts=0" in self.head.call("scontrol", "show", "job", job_id)


@pytest.fixture(params=list(IMAGES))
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    images = pytest.importorskip("deploy.sandbox.images", reason="no images here")
    lab = Lab(str(asyncio.run(images.ensure_base(request.param))), tmp_path / "lab", suite=request.param)
    try:
        lab.start(["head", "m1", "m2"])
        yield lab
    finally:
        lab.close()


@pytest_asyncio.fixture
async def cluster(lab: Lab) -> AsyncIterator[Cluster]:
    """slurmctld runs with power saving; all slots are free CLOUD nodes."""
    head = lab.hosts["head"]
    head.without_cgroups()
    (head.conf_dir / "slurm.conf").write_text(POWER_CONF + POWER)
    for name in (NODES, GRES):
        (head.conf_dir / name).symlink_to(Path("/var/lib/meshd-slurm", name))
    first = render([QUEUE], [], shapes_fixed=lab.suite == "bookworm")
    put(head.files_dir, first.nodes_conf, first.gres_conf)
    client, made = SlurmClient(head.runner, 20.0), list[Cluster]()

    async def restart() -> None:
        made[0].restarts += 1
        await asyncio.to_thread(head.stop, "slurmctld")
        await asyncio.to_thread(lambda: head.start_slurmctld(wait=False))

    files = SlurmFiles(head.files_dir)
    made.append(Cluster(lab, Publisher(files=files, client=client, clock=SystemClock(), restart=restart), client))
    head.start_slurmctld()
    await made[0].publisher.apply(first)
    yield made[0]


async def test_a_gang_joins_without_a_reconfigure_and_leaves_again(cluster: Cluster) -> None:
    free = (await cluster.client.view()).nodes
    assert all({"IDLE", "CLOUD", "POWERED_DOWN"} <= node.states for node in free.values())
    job = cluster.sbatch("-N2", "--gres=gpu:h100:2", "-C", "fast", "--wrap", "until [ -e /tmp/go ]; do sleep 1; done")
    await cluster.job_until(job, "CONFIGURING")
    await cluster.node_until("h100-2", "POWERING_UP")
    machines = cluster.machine("m1", "h100-1"), cluster.machine("m2", "h100-2")
    content = cluster.wanted(*machines)
    assert cluster.settable(content) == {"h100-1", "h100-2"}
    reconfigures = cluster.publisher.status().reconfigures
    await cluster.client.set_node_addrs({node.slot: node.node_addr for node in machines})
    cluster.start_slurmd("m1", "h100-1")
    cluster.start_slurmd("m2", "h100-2")
    for slot in ("h100-1", "h100-2"):
        await until(lambda slot=slot: cluster.node(slot), lambda node: node.up, f"{slot} is up")
    assert cluster.publisher.status().reconfigures == reconfigures

    # The file follows while the job waits for its start, or runs.
    assert await cluster.publisher.apply(content)
    assert cluster.publisher.status().reconfigures == reconfigures + 1
    assert cluster.publisher.applier.unsafe == {}
    assert await cluster.job(job) in {"CONFIGURING", "RUNNING"}
    await cluster.job_until(job, "RUNNING")
    assert cluster.never_requeued(job)
    assert (await cluster.node("h100-1")).node_addr == machines[0].node_addr
    assert "lab" in (await cluster.node("h100-1")).features
    assert cluster.head.call("srun", "--overlap", f"--jobid={job}", "-N2", "echo", "here") == "here\nhere\n"

    # slurmctld restarts: nothing is lost.
    await asyncio.to_thread(cluster.head.stop, "slurmctld")
    await asyncio.to_thread(cluster.head.start_slurmctld)
    assert await cluster.job(job) == "RUNNING"
    assert [(await cluster.node(node.slot)).node_addr for node in machines] == [node.node_addr for node in machines]

    # They leave: not while the job runs, and then with their addresses.
    await cluster.client.power_down(["h100-1", "h100-2"])
    with pytest.raises(Exception, match="still has jobs"):
        await cluster.publisher.apply(cluster.wanted())
    for host in ("m1", "m2"):
        cluster.lab.hosts[host].call("touch", "/tmp/go")
    await cluster.job_until(job, "GONE")
    await until(
        cluster.client.view, lambda view: all(node.powered_down for node in view.nodes.values()), "all are powered down"
    )
    assert await cluster.publisher.apply(cluster.wanted())
    view = await cluster.client.view()
    assert all(is_placeholder(node.node_addr) for node in view.nodes.values())
    assert cluster.restarts == 0


async def test_a_machine_with_other_devices_gets_its_line_first_and_the_job_waits(cluster: Cluster) -> None:
    job = cluster.sbatch("--gres=gpu:h100:2", "-w", "h100-3", "--wrap", "sleep 600")
    await cluster.node_until("h100-3", "POWERING_UP")
    odd = cluster.machine("m1", "h100-3", first_device=4)
    content = cluster.wanted(odd)
    assert cluster.settable(content) == set()
    assert await cluster.publisher.apply(content)
    assert (await cluster.node("h100-3")).node_addr == odd.node_addr
    assert await cluster.job(job) == "CONFIGURING"
    cluster.start_slurmd("m1", "h100-3")
    await cluster.job_until(job, "RUNNING")
    assert cluster.never_requeued(job)


async def test_a_slot_for_which_a_job_waits_keeps_its_shape_when_the_promise_changes(cluster: Cluster) -> None:
    job = cluster.sbatch("--gres=gpu:h100:2", "-w", "h100-1", "--wrap", "sleep 600")
    await cluster.node_until("h100-1", "POWERING_UP")
    larger = replace(QUEUE, memory_min_mib=600)
    await cluster.publisher.apply(cluster.wanted(pool=larger))
    machine = cluster.machine("m1", "h100-1")
    await cluster.publisher.apply(cluster.wanted(machine, pool=larger))
    assert set(cluster.publisher.applier.unsafe) == {"h100-1"}
    shown = cluster.head.call("scontrol", "show", "nodes", "-o").splitlines()
    memory = {line.split()[0].partition("=")[2]: line.partition(" RealMemory=")[2].split()[0] for line in shown}
    assert memory == {"h100-1": "500", "h100-2": "600", "h100-3": "600", "h100-4": "600"}
    assert (await cluster.node("h100-1")).node_addr == machine.node_addr
    assert await cluster.job(job) == "CONFIGURING"
    cluster.start_slurmd("m1", "h100-1")
    await cluster.job_until(job, "RUNNING")
    assert cluster.never_requeued(job)


async def test_an_address_that_was_set_survives_the_reconfigure_for_another_machine(cluster: Cluster) -> None:
    """22.05 takes the file's address for a node without a job."""
    by_scale, other = cluster.machine("m1", "h100-3"), cluster.machine("m2", "h100-4")
    await cluster.client.set_node_addrs({"h100-3": by_scale.node_addr})
    await cluster.publisher.apply(cluster.wanted(other))
    assert (await cluster.node("h100-3")).node_addr == by_scale.node_addr
    cluster.start_slurmd("m1", "h100-3")
    await until(lambda: cluster.node("h100-3"), lambda node: node.up, "h100-3 is up")
    await cluster.publisher.apply(cluster.wanted(other, by_scale))
    assert cluster.head.call("srun", "-w", "h100-3", "--gres=gpu:2", "echo", "here") == "here\n"


async def test_a_pool_changes_its_form_and_back_while_a_job_runs(cluster: Cluster) -> None:
    # The older form, with a machine and a job.
    machine = cluster.machine("m1", "h100-1")
    await cluster.publisher.apply(cluster.wanted(pool=BY_HAND))
    view = await cluster.client.view()
    assert all("DOWN" in node.states and not node.cloud for node in view.nodes.values())
    await cluster.publisher.apply(cluster.wanted(machine, pool=BY_HAND))
    cluster.start_slurmd("m1", "h100-1")
    await until(lambda: cluster.node("h100-1"), lambda node: node.up, "h100-1 is up")
    first = cluster.sbatch("-w", "h100-1", "--gres=gpu:1", "--wrap", "sleep 600")
    await cluster.job_until(first, "RUNNING")

    # Into the hands of the queue. A machine that has another shape keeps its line until its jobs have ended.
    restarts = cluster.restarts
    await cluster.publisher.apply(cluster.wanted(machine))
    assert await cluster.job(first) == "RUNNING"
    kept = set(cluster.publisher.applier.unsafe)
    assert kept == (set() if cluster.old else {"h100-1"})
    view = await cluster.client.view()
    assert {slot for slot, node in view.nodes.items() if not node.cloud} == kept
    await cluster.client.power_down([f"h100-{i}" for i in (2, 3, 4)], force=True)
    await cluster.node_until("h100-4", "IDLE+POWERED_DOWN")
    cluster.head.call("scancel", first)
    await until(lambda: cluster.node("h100-1"), lambda node: not node.held, "h100-1 is idle")
    await cluster.publisher.apply(cluster.wanted(machine))
    assert (await cluster.node("h100-1")).cloud
    assert cluster.restarts == restarts
    second = cluster.sbatch("-w", "h100-1", "--gres=gpu:2", "--wrap", "sleep 600")
    await cluster.job_until(second, "RUNNING")
    waits = cluster.sbatch("-w", "h100-3", "--gres=gpu:2", "--wrap", "true")
    await cluster.node_until("h100-3", "POWERING_UP")

    # And back: the slot for which a job waits stays a CLOUD node; 22.05 drops the mark only at a restart.
    await cluster.publisher.apply(cluster.wanted(machine, pool=BY_HAND))
    assert await cluster.job(second) == "RUNNING"
    assert await cluster.job(waits) == "CONFIGURING"
    kept = {"h100-3"} if cluster.old else {"h100-1", "h100-3"}
    assert set(cluster.publisher.applier.unsafe) == kept
    view = await cluster.client.view()
    assert {slot for slot, node in view.nodes.items() if node.cloud} == kept
    assert all("DOWN" in view.nodes[slot].states for slot in ("h100-2", "h100-4"))
    assert cluster.restarts == restarts + cluster.old
    cluster.head.call("scancel", waits)
    await cluster.client.power_down(["h100-3"], force=True)
    await cluster.node_until("h100-3", "IDLE+POWERED_DOWN")
    cluster.head.call("scancel", second)
    await until(lambda: cluster.node("h100-1"), lambda node: not node.held, "h100-1 is idle")
    await cluster.publisher.apply(cluster.wanted(machine, pool=BY_HAND))
    view = await cluster.client.view()
    assert not any(node.cloud for node in view.nodes.values())
    assert "DOWN" in view.nodes["h100-3"].states
    await until(lambda: cluster.node("h100-1"), lambda node: node.up, "h100-1 is up")
    assert cluster.head.call("srun", "-w", "h100-1", "--gres=gpu:2", "echo", "here") == "here\n"
    other = cluster.machine("m2", "h100-3")
    await cluster.publisher.apply(cluster.wanted(machine, other, pool=BY_HAND))
    cluster.start_slurmd("m2", "h100-3")
    await until(lambda: cluster.node("h100-3"), lambda node: node.up, "h100-3 is up")
    assert cluster.head.call("srun", "-w", "h100-3", "--gres=gpu:2", "echo", "here") == "here\n"
