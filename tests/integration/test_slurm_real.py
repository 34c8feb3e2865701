"""meshd's Slurm half against the real thing: slurmctld, slurmd and munged of two versions, in hosts in a box."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import pytest
import pytest_asyncio

from deploy.node.meshd_node.parse import slurmd_c
from meshd.daemon.slurm.held_lines import problem_of
from meshd.errors import SlurmError, SlurmRefused
from meshd.model.hardware import GpuFact, NodeShape
from meshd.model.observed import SlurmJob
from meshd.plan.limits import COUNT_MAX, MEMORY_MAX_MIB, MEMORY_MIN_MIB, cpus_of, shape_fault
from meshd.runtime.clock import SystemClock
from meshd.runtime.rootfs import RootFs
from meshd.slurm.capabilities import parse_version
from meshd.slurm.client import SlurmClient
from meshd.slurm.files import SlurmFiles, Texts
from meshd.slurm.headfiles import put
from meshd.slurm.init.apply import apply_init, read_files
from meshd.slurm.init.codes import Warn
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.types import InitInput
from meshd.slurm.nodes import FREE_REASON, JoinedNode, PoolLine, Rendered, render
from meshd.slurm.pools import read_pools
from meshd.slurm.publish import Publisher
from meshd.slurm.retained import Retained, retain
from meshd.slurm.show import last_errors
from tests.integration.slurm_lab import NETWORK, QUICK_START, START_S, Host, Lab, wait_until
from tests.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces"),
]

IMAGES = {"bookworm": "22.05", "trixie": "24.11"}
HEAD_IP = f"{NETWORK}.1"
POOLS = [
    PoolLine("h100", "", 4, "h100", 2, 1, 500, ("fast",), default=True),
    PoolLine("cpu", "", 2, "", 0, 1, 500),
]
GPUS = tuple(GpuFact(i, "NVIDIA H100", f"GPU-{i}", 81559, f"/dev/nvidia{i}") for i in range(2))

LAB_SETTINGS = f"""
{QUICK_START}
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
"""


def image_layers(name: str) -> str:
    """The image as overlayfs wants it; skips where none can be had. MESHD_TEST_IMAGES holds other ones."""
    own = os.environ.get("MESHD_TEST_IMAGES")
    if own:
        return str(Path(own, name).resolve())
    images = pytest.importorskip("deploy.sandbox.images", reason="no images here")
    return str(asyncio.run(images.ensure_base(name)))


@dataclass
class Cluster:
    """A head with meshd's Publisher beside it, and two machines."""

    lab: Lab
    publisher: Publisher
    client: SlurmClient
    files: SlurmFiles
    restarts: int = 0

    @property
    def head(self) -> Host:
        return self.lab.hosts["head"]

    @property
    def old(self) -> bool:
        return self.lab.suite == "bookworm"

    def wanted(self, *joined: JoinedNode, pools: list[PoolLine] | None = None) -> Rendered:
        return render(pools or POOLS, joined, shapes_fixed=self.old)

    def node(self, host: str, slot: str) -> JoinedNode:
        shape = NodeShape(**slurmd_c(self.lab.hosts[host].call("slurmd", "-C")))
        devices = GPUS if slot.startswith("h100") else ()
        return JoinedNode(slot, self.lab.hosts[host].address, shape, devices, ("lab",))

    def start_slurmd(self, host: str, slot: str) -> None:
        self.lab.hosts[host].start_slurmd("--conf-server", f"{HEAD_IP}:6817", "-N", slot)

    async def idle(self, slot: str) -> None:
        """Wait until slurmd has registered, and no job is on the slot or is just ending there."""
        view = await until(
            self.client.view,
            lambda view: view.nodes[slot].up and not view.nodes[slot].busy and not view.jobs_on(slot),
            f"{slot} is idle",
        )
        assert "IDLE" in view.nodes[slot].states

    async def job(self, job_id: str) -> str:
        jobs = {job.id: job.state for job in (await self.client.view()).jobs}
        return jobs.get(job_id, "GONE")

    async def job_until(self, job_id: str, state: str) -> None:
        async def look() -> tuple[str, tuple[SlurmJob, ...]]:
            jobs = (await self.client.view()).jobs
            return next((job.state for job in jobs if job.id == job_id), "GONE"), jobs

        await until(look, lambda seen: seen[0] == state, f"job {job_id} is {state}", START_S, every_s=0.1)

    def sbatch(self, *args: str) -> str:
        return self.head.call("sbatch", "--parsable", "-o", "/dev/null", *args).strip()


@pytest.fixture(params=list(IMAGES))
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(image_layers(request.param), tmp_path / "lab", suite=request.param)
    try:
        lab.start(["head", "m1", "m2"])
        yield lab
    finally:
        lab.close()


@pytest_asyncio.fixture
async def cluster(lab: Lab) -> AsyncIterator[Cluster]:
    """A head made by plan_init from nothing, slurmctld running, all slots free."""
    head = lab.hosts["head"]
    init(lab, user_conf=None)
    client = SlurmClient(head.runner, 20.0)
    files = SlurmFiles(head.files_dir)
    made: list[Cluster] = []

    async def restart() -> None:
        made[0].restarts += 1
        if head.alive("slurmctld"):
            await asyncio.to_thread(head.stop, "slurmctld")
        await asyncio.to_thread(lambda: head.start_slurmctld(wait=False))

    async def slurmctld_errors() -> str:
        return last_errors("\n".join(head.log("slurmctld").split("\n")[-20:]))

    publisher = Publisher(
        files=files, client=client, clock=SystemClock(), restart=restart, last_errors=slurmctld_errors,
    )  # fmt: skip
    made.append(Cluster(lab, publisher, client, files))
    head.start_slurmctld()
    await publisher.apply(made[0].wanted())
    yield made[0]


def took(what: str, started: float) -> None:
    """Tell a figure (seen with `pytest -s`)."""
    sys.stdout.write(f"{what}: {time.monotonic() - started:.3f}\n")


def init(lab: Lab, user_conf: str | None, **texts: str) -> tuple[Warn, ...]:
    """`meshctl init` on the head; returns what it warns of."""
    head = lab.hosts["head"]
    head.without_cgroups()
    if user_conf is not None:
        (head.conf_dir / "slurm.conf").write_text(user_conf)
    for name, text in texts.items():
        (head.conf_dir / name.replace("_", ".")).write_text(text)
    plan = plan_init(look(head))
    apply_init(plan, datetime.now(UTC), lab_root(head))
    assert plan_init(look(head)).empty, "planning again after init leaves nothing to do"
    if user_conf is None:
        path = head.conf_dir / "slurm.conf"
        path.write_text(path.read_text() + LAB_SETTINGS)
    return tuple(finding.code for finding in plan.findings)


def look(head: Host) -> InitInput:
    """What `meshctl init` finds on the head."""
    read, links = read_files(head.conf_dir)
    return InitInput(
        cluster="lab", head="head", head_address=HEAD_IP, slurm_conf=read.pop("slurm.conf", None),
        gres_conf=read.pop("gres.conf", None), cgroup_conf=read.pop("cgroup.conf", None),
        oci_conf=read.pop("oci.conf", None), included=read, links=links,
        pools=POOLS, version=parse_version(head.call("slurmctld", "-V")),
    )  # fmt: skip


def lab_root(head: Host) -> RootFs:
    """The head's file system, as the head sees it."""
    return RootFs(Path(f"/proc/{head.pid}/root"))


async def test_a_slot_lives_through_join_work_leave_and_join_again(cluster: Cluster) -> None:
    view = await cluster.client.view()
    assert view.version.startswith(IMAGES[cluster.lab.suite])
    assert set(view.nodes) == {"h100-1", "h100-2", "h100-3", "h100-4", "cpu-1", "cpu-2"}
    assert "h100" in cluster.head.call("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sinfo", "-h")
    assert all(node.reason == FREE_REASON and "DOWN" in node.states for node in view.nodes.values())
    restarts = cluster.restarts

    # What the whole pool could give is accepted while nothing is there; what it could not is not.
    full = cluster.sbatch("-N4", "--gres=gpu:h100:2", "--wrap", "sleep 600")
    waiting = cluster.sbatch("-N1", "--gres=gpu:h100:2", "-C", "fast&h100", "--wrap", "sleep 600")
    assert "not available" in cluster.head.said("sbatch", "--gres=gpu:h100:3", "--wrap", "true")
    assert await cluster.job(full) == "PENDING"
    assert {j.id: j.gpus for j in (await cluster.client.view()).jobs} == {full: 8, waiting: 2}
    cluster.head.call("scancel", full)

    first = cluster.node("m1", "h100-1")
    started = time.monotonic()
    assert await cluster.publisher.apply(cluster.wanted(first))
    took("join_in_force_s", started)
    assert cluster.publisher.applier.node_addrs == {"h100-1": first.node_addr}
    cluster.start_slurmd("m1", "h100-1")
    await cluster.job_until(waiting, "RUNNING")
    took("waiting_job_runs_s", started)
    node = (await cluster.client.view()).nodes["h100-1"]
    assert {"fast", "h100", "lab"} <= set(node.features)
    assert node.version.startswith(view.version)

    # Another one joins and leaves: the job on the first does not notice.
    second = cluster.node("m2", "h100-3")
    await cluster.publisher.apply(cluster.wanted(first, second))
    cluster.start_slurmd("m2", "h100-3")
    await cluster.idle("h100-3")
    assert cluster.head.call("srun", "-w", "h100-3", "--gres=gpu:1", "printenv", "CUDA_VISIBLE_DEVICES") == "0\n"
    await cluster.idle("h100-3")
    with pytest.raises(SlurmError, match="open to jobs"):
        await cluster.publisher.apply(cluster.wanted(first))
    with pytest.raises(SlurmError, match="still has jobs"):
        await cluster.publisher.apply(cluster.wanted(second))
    assert await cluster.job(waiting) == "RUNNING", "a refused change touches nothing"
    await cluster.client.drain("h100-3", "leaves")
    cluster.lab.hosts["m2"].stop("slurmd")
    await cluster.client.set_down("h100-3", "left")
    await cluster.publisher.apply(cluster.wanted(first))
    node = (await cluster.client.view()).nodes["h100-3"]
    assert "DOWN" in node.states
    assert node.node_addr.startswith("239.192.")
    assert await cluster.job(waiting) == "RUNNING"

    # The slot is used again by the machine under another slot's name: its drain mark is meshd's and is lifted.
    again = cluster.node("m2", "h100-3")
    await cluster.publisher.apply(cluster.wanted(first, again))
    cluster.start_slurmd("m2", "h100-3")
    await cluster.idle("h100-3")
    await cluster.client.resume("h100-3")
    await cluster.client.resume("h100-3")
    assert not (await cluster.client.view()).nodes["h100-3"].drained
    assert cluster.restarts == restarts, "joins and leaves never restart slurmctld"
    assert await cluster.job(waiting) == "RUNNING"


async def test_a_machine_whose_address_changes_keeps_its_job(cluster: Cluster) -> None:
    """As when its device is deleted from the tailnet and it rejoins: Slurm reaches it nowhere, then somewhere else."""
    first, second = cluster.node("m1", "h100-1"), cluster.node("m2", "h100-2")
    await cluster.publisher.apply(cluster.wanted(first, second))
    cluster.start_slurmd("m1", "h100-1")
    cluster.start_slurmd("m2", "h100-2")
    await cluster.idle("h100-1")
    await cluster.idle("h100-2")
    script = "until [ -e /tmp/go ]; do sleep 0.2; done; exit 7"
    job = cluster.sbatch("-w", "h100-1", "--gres=gpu:1", "--no-requeue", "--wrap", script)
    await cluster.job_until(job, "RUNNING")
    m1 = cluster.lab.hosts["m1"]
    await asyncio.to_thread(wait_until, lambda: "sleep 0.2" in m1.call("ps", "ax"), "the job's script on m1")

    old = first.node_addr
    moved = replace(first, node_addr=f"{NETWORK}.99")
    cluster.lab.readdress("m1", moved.node_addr)
    with pytest.raises(SlurmError, match="still has jobs"):
        await cluster.publisher.apply(cluster.wanted(moved, second))
    started = time.monotonic()
    await cluster.publisher.apply(cluster.wanted(replace(moved, former_node_addrs=(old,)), second))
    took("address_in_force_s", started)
    assert (await cluster.client.view()).nodes["h100-1"].node_addr == moved.node_addr
    assert await cluster.job(job) == "RUNNING"
    assert cluster.head.call("srun", "-w", "h100-1", "--overlap", f"--jobid={job}", "echo", "here") == "here\n"
    took("a_new_step_answers_s", started)
    m1.call("touch", "/tmp/go")
    await cluster.job_until(job, "GONE")
    assert "ExitCode=7:0" in cluster.head.call("scontrol", "show", "job", job)  # its own end, told from the new address
    await cluster.idle("h100-1")
    assert cluster.head.call("srun", "-w", "h100-1", "echo", "again") == "again\n"


async def test_a_lost_machine_gives_its_jobs_back_and_its_slot_to_another(cluster: Cluster) -> None:
    await cluster.publisher.apply(cluster.wanted(cluster.node("m1", "h100-1")))
    cluster.start_slurmd("m1", "h100-1")
    job = cluster.sbatch("--requeue", "--gres=gpu:1", "--wrap", "sleep 600")
    await cluster.job_until(job, "RUNNING")
    cluster.lab.remove("m1")
    with pytest.raises(SlurmError, match=rf"still has jobs \({job}\)"):
        await cluster.publisher.apply(cluster.wanted())
    await cluster.client.set_down("h100-1", "machine lost")
    await cluster.job_until(job, "PENDING")
    started = time.monotonic()
    while True:
        try:
            await cluster.publisher.apply(cluster.wanted(cluster.node("m2", "h100-1")))
            break
        except SlurmError as refused:
            assert time.monotonic() - started < START_S, f"the slot is still refused: {refused}"
            await asyncio.sleep(0.2)
    took("slot_free_after_set_down_s", started)
    cluster.start_slurmd("m2", "h100-1")
    await until(cluster.client.view, lambda view: view.nodes["h100-1"].up, "the slot takes jobs again")


async def typed(cluster: Cluster, command: str) -> None:
    """Type a cure as a person does, and once more where Slurm asks for that.

    In the first tenth of a second after a reconfigure slurmctld 24.11 answers EAGAIN for single jobs of an update.
    """

    async def said() -> str:
        return cluster.head.said(*command.split())

    words = await until(said, lambda text: "temporarily unavailable" not in text, f"{command} is taken")
    assert words == "", words


async def test_what_waiting_jobs_and_reservations_name_stays_and_the_cures_free_it(cluster: Cluster) -> None:
    """Without it slurmctld would set each of these jobs to NODE_FAIL, and delete the reservations."""
    named = [
        cluster.sbatch("-p", "cpu", "--wrap", "true"),
        cluster.sbatch("-p", "h100,cpu", "--wrap", "true"),
        cluster.sbatch("-p", "cpu", "-H", "--wrap", "true"),
        cluster.sbatch("-p", "cpu", "-a", "1-2", "--wrap", "true"),
    ]
    required = cluster.sbatch("-p", "h100", "-w", "h100-4", "--wrap", "true")
    others = [cluster.sbatch("-x", "h100-4", "--wrap", "true"), cluster.sbatch("-N4", "--wrap", "true")]
    cluster.head.call("scontrol", "create", "reservation", "reservationname=kept", "starttime=now", "duration=60",
                      "users=root", "nodes=cpu-1", "flags=ignore_jobs,maint")  # fmt: skip
    smaller = [PoolLine("h100", "", 2, "h100", 2, 1, 500, ("fast",), default=True)]
    with pytest.raises(SlurmError):
        await cluster.publisher.apply(cluster.wanted(pools=smaller))

    async def settle() -> tuple[Retained, ...]:
        view = await cluster.client.view()
        kept, holds = retain(
            smaller, read_pools(cluster.publisher.applier.nodes_conf), view.jobs, await cluster.client.reservations()
        )
        await cluster.publisher.apply(cluster.wanted(pools=list(kept)))
        return holds

    holds = await settle()
    assert [(hold.pool, hold.partition, hold.slots) for hold in holds] == [
        ("cpu", "cpu", ("cpu-1",)), ("h100", "", ("h100-4",)),
    ]  # fmt: skip
    assert "h100-4" in (await cluster.client.view()).nodes
    assert "not" in cluster.head.said("sbatch", "-p", "cpu", "--wrap", "true"), "it takes no new jobs"
    states = {job.id: job.state for job in (await cluster.client.view()).jobs}
    assert set(states.values()) == {"PENDING"}
    assert len(states) == 3 + 2 + 1 + 2
    for hold in holds:
        for command in re.findall(r"`([^`]+)`", problem_of(hold).cure):
            if not command.startswith("scancel"):
                await typed(cluster, command)
    assert await settle() == ()
    nodes = (await cluster.client.view()).nodes
    assert set(nodes) == {"h100-1", "h100-2"}
    for job in (named[0], named[1], named[2], required, *others):
        assert await cluster.job(job) == "PENDING"


async def test_a_changed_node_set_comes_into_force_and_jobs_survive_it(cluster: Cluster) -> None:
    first = cluster.node("m1", "h100-1")
    await cluster.publisher.apply(cluster.wanted(first))
    cluster.start_slurmd("m1", "h100-1")
    job = cluster.sbatch("--gres=gpu:1", "--wrap", "sleep 600")
    await cluster.job_until(job, "RUNNING")
    restarts = cluster.restarts
    larger = [PoolLine("h100", "", 6, "h100", 2, 1, 500, ("fast",), default=True), POOLS[1]]
    started = time.monotonic()
    await cluster.publisher.apply(cluster.wanted(first, pools=larger))
    took("larger_pool_s", started)
    assert "h100-6" in (await cluster.client.view()).nodes
    await cluster.publisher.apply(cluster.wanted(first, pools=[larger[0]]))
    assert "cpu-1" not in (await cluster.client.view()).nodes
    assert (cluster.restarts - restarts) == (2 if cluster.old else 0)
    await until(cluster.client.view, lambda view: view.nodes["h100-1"].busy, "h100-1 is known to work")
    assert await cluster.job(job) == "RUNNING"


async def test_what_slurm_does_not_take_is_undone_and_slurmctld_lives(cluster: Cluster) -> None:
    first = cluster.node("m1", "h100-1")
    good = cluster.wanted(first)
    await cluster.publisher.apply(good)

    async def unchecked(texts: Texts) -> None:
        """As if root's unit had taken it: Slurm has to refuse it by itself."""
        put(cluster.files.directory, texts.nodes, texts.gres)

    cluster.files._put = unchecked
    # Words that no parser knows.
    bad = Rendered(good.nodes_conf.replace("RealMemory", "RealMemorz"), good.gres_conf, good.slots, good.node_addrs)
    with pytest.raises(SlurmRefused, match="RealMemorz"):
        await cluster.publisher.apply(bad)
    # Well-formed, but a partition names a node that is nowhere: fatal for a slurmctld that starts with it.
    lines = good.nodes_conf.replace("Nodes=h100-[1-4]", "Nodes=h100-[1-9]")
    with pytest.raises(SlurmRefused) as caught:
        await cluster.publisher.apply(Rendered(lines, good.gres_conf, good.slots, good.node_addrs))
    assert "Invalid node names in partition" in str(caught.value), "Slurm's own words"
    assert await cluster.client.ping()
    assert cluster.files.current().nodes == good.nodes_conf
    assert (await cluster.client.view()).nodes["h100-1"].node_addr == first.node_addr
    status = cluster.publisher.status()
    assert status.refusals == 2
    assert status.problems

    # A hand edit is reported, put aside, and overwritten.
    path = cluster.files.directory / "nodes.conf"
    path.write_text("NodeName=mine Junk=1\n")
    assert any("edited by hand" in text for text in cluster.publisher.status().problems)
    assert await cluster.publisher.apply(good)
    assert (cluster.files.directory / "nodes.conf.edited").read_text() == "NodeName=mine Junk=1\n"
    assert await cluster.publisher.apply(good) is False


async def test_what_is_admitted_slurm_takes(cluster: Cluster) -> None:
    """The edges of what admission lets in, for Slurm's own parser; the writer looks through each line as root does."""
    shapes = [
        NodeShape(COUNT_MAX, 1, 1, COUNT_MAX, 1, MEMORY_MAX_MIB),
        NodeShape(8, 1, 1, 8, 2, 4096),
        NodeShape(32, 1, 1, 24, 1, 4096),
        NodeShape(16, 2, 1, 8, 2, MEMORY_MIN_MIB),
    ]
    assert [shape_fault(shape) for shape in shapes] == [""] * 4
    nodes = [JoinedNode(f"h100-{i}", f"100.64.77.{100 + i}", shape, GPUS) for i, shape in enumerate(shapes, 1)]
    made = render(POOLS, nodes, shapes_fixed=False)
    assert made.left_out == {}
    await cluster.publisher.apply(made)
    shown = cluster.head.call("scontrol", "show", "nodes", "-o")
    cpus = dict(re.findall(r"NodeName=(h100-\d) .*?CPUTot=(\d+) ", shown))
    assert cpus == {f"h100-{i}": str(cpus_of(shape)) for i, shape in enumerate(shapes, 1)}


async def test_one_machine_that_cannot_be_written_does_not_keep_others_out(cluster: Cluster) -> None:
    good, bad = cluster.node("m1", "h100-1"), cluster.node("m2", "h100-2")
    bad = replace(bad, shape=replace(bad.shape, boards=0), devices=(GPUS[0], replace(GPUS[1], device=GPUS[0].device)))
    made = render(POOLS, [good, bad], shapes_fixed=cluster.old)
    assert list(made.left_out) == ["h100-2"]
    await cluster.publisher.apply(made)
    assert cluster.publisher.applier.node_addrs == {"h100-1": good.node_addr}


async def test_a_head_with_its_own_slurm_conf_and_gres_conf(lab: Lab) -> None:
    """A slurm.conf as people have it, the head a compute node itself, and a gres.conf of its own."""
    head = lab.hosts["head"]
    cpus = slurmd_c(head.call("slurmd", "-C"))["cpus"]
    user = (
        "# our cluster\r\nClusterName=lab\r\nSlurmctldHost=head("
        + HEAD_IP
        + ")\nSlurmUser=slurm\nReturnToService=1\nSelectType=select/linear\n"
        + "SlurmctldParameters=idle_on_node_suspend,\\\n"
        + "max_dbd_msg_action=discard\nMpiDefault=none\n"
        + f"NodeName=head CPUs={cpus} RealMemory=500 Gres=gpu:a10:1 State=UNKNOWN\n"
        + "PartitionName=local Nodes=head MaxTime=INFINITE State=UP"
        + LAB_SETTINGS
        + "SlurmctldLogFile=/var/log/slurm/slurmctld.log\nSlurmdLogFile=/var/log/slurm/slurmd.log\n"
    )
    warns = init(lab, user, gres_conf="# ours\nNodeName=head Name=gpu Type=a10 File=/dev/nvidia7\n")
    assert warns == (Warn.SELECT_TYPE,)
    head.start_slurmctld()
    client = SlurmClient(head.runner, 20.0)

    async def restart() -> None:
        if head.alive("slurmctld"):
            await asyncio.to_thread(head.stop, "slurmctld")
        await asyncio.to_thread(lambda: head.start_slurmctld(wait=False))

    files = SlurmFiles(head.files_dir)
    publisher = Publisher(files=files, client=client, clock=SystemClock(), restart=restart)
    shape = NodeShape(1, 1, 1, 1, 1, 600)
    node = JoinedNode("h100-2", lab.hosts["m1"].address, shape, GPUS)
    old = lab.suite == "bookworm"
    await publisher.apply(render(POOLS, [node], shapes_fixed=old))
    head.start_slurmd()
    lab.hosts["m1"].start_slurmd("--conf-server", f"{HEAD_IP}:6817", "-N", "h100-2")

    def both_idle() -> bool:
        return head.call("sinfo", "-h", "-N", "-n", "head,h100-2", "-o", "%T").split().count("idle") >= 2

    await asyncio.to_thread(wait_until, both_idle, "head and machine idle")
    nodes = (await client.view()).nodes
    assert nodes["head"].gres == "gpu:a10:1"
    assert nodes["h100-2"].gres.startswith("gpu:h100:2")


async def test_init_plan_is_for_this_directory(lab: Lab) -> None:
    head = lab.hosts["head"]
    init(lab, None)
    assert (head.conf_dir / "nodes.conf").readlink() == Path("/var/lib/meshd-slurm/nodes.conf")
    assert PurePosixPath("/etc/slurm") == InitInput("x", "h", "", None).conf_dir
