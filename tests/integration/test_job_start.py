"""Jobs start as soon as their nodes are up, with the slurmctld of two releases and the programs that meshd installs."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshd.bootstrap.assets import head_programs
from meshd.config import PoolSettings
from meshd.daemon.agents import AgentQueues
from meshd.daemon.observe.source import Source
from meshd.daemon.slurm.bell import Bell
from meshd.daemon.slurm.prolog_gate import ALLOWED, SILENT_S, JobUsers, PrologGate
from meshd.model.observed import SlurmView
from meshd.runtime.clock import SystemClock
from meshd.slurm.capabilities import SlurmVersion, parse_version
from meshd.slurm.client import SlurmClient
from meshd.slurm.head_programs import PROLOG_SLURMCTLD, RESUME_PROGRAM, SUSPEND_PROGRAM, SUSPEND_TIME_S
from meshd.slurm.show import parse_nodes
from meshd.store.journal import Journal
from tests import waiting
from tests.integration.slurm_lab import POWER_CONF, Host, Lab
from tests.integration.test_slurm_real import image_layers
from tests.live import live_settings

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces"),
]

CPUS = 128
NODES = f"""\
NodeName=h100-[1-4] NodeAddr=239.192.0.[1-4] CPUs={CPUS} SocketsPerBoard=1 CoresPerSocket={CPUS} State=CLOUD
NodeName=own-1 NodeAddr=10.9.0.1 CPUs=1 State=DOWN
PartitionName=h100 Nodes=h100-[1-4] Default=YES MaxTime=INFINITE State=UP
"""
POWER = f"""\
SchedulerParameters=sched_interval=5,bf_interval=5
SelectTypeParameters=CR_Core
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ResumeProgram={RESUME_PROGRAM}
SuspendProgram={SUSPEND_PROGRAM}
SuspendTime={SUSPEND_TIME_S}
ResumeTimeout=3600
SuspendTimeout=1
ResumeRate=0
SuspendRate=0
PrologSlurmctld={PROLOG_SLURMCTLD}
"""
AT_FIFO = re.compile(r"\bdd if=/run/meshd/prolog/(\d+(?:_\d+)?)\.(\d+) ")
"""A program that waits at a prolog's FIFO: the job, and the prolog's process."""
ORPHAN = "1"
"""The parent of a process whose own has ended."""
SLURM_LOOKS_S = 30.0
"""slurmctld itself looks as seldom at jobs that are being configured."""


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(image_layers(request.param), tmp_path_factory.mktemp("start") / "lab", suite=request.param)
    try:
        lab.start(["head", "m1", "m2"])
        head = lab.hosts["head"]
        for path, text in head_programs().items():
            place = Path(f"/proc/{head.pid}/root") / str(path).lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            place.chmod(0o755)
        head.without_cgroups()
        old = parse_version(head.call("slurmctld", "-V")) < SlurmVersion((23, 2))
        text = POWER_CONF + POWER + ("PrivateData=cloud\n" if old else "") + NODES
        (head.conf_dir / "slurm.conf").write_text(text)
        head.start_slurmctld()
        yield lab
    finally:
        lab.close()


@dataclass
class Meshd:
    """The part of the daemon that lets jobs start."""

    gate: PrologGate
    tasks: list[asyncio.Task[None]]

    async def kill(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@dataclass
class Cluster:
    """A head with meshd beside its slurmctld, and two machines."""

    lab: Lab
    base: Path
    meshd: Meshd | None = None

    @property
    def head(self) -> Host:
        return self.lab.hosts["head"]

    @property
    def run_dir(self) -> Path:
        return Path(f"/proc/{self.head.pid}/root/run/meshd")

    async def start_meshd(self) -> None:
        user, group = (int(self.head.call("id", word, "slurm")) for word in ("-u", "-g"))
        await self.ask("install", "-d", "-o", "slurm", "-g", "slurm", "/run/meshd")
        clock, client = SystemClock(), SlurmClient(self.head.runner, 10.0)
        source: Source[SlurmView] = Source("slurm", client.view, clock, interval_s=lambda: 0.25, changed=lambda: None)
        live = live_settings(pools={"h100": PoolSettings(gpu="h100", max_nodes=4)})
        journal = Journal(self.base / f"{time.monotonic_ns()}.db")
        users = JobUsers(lambda _: None, lambda *_: True, lambda *_: True)
        gate = PrologGate(self.run_dir, live, journal, AgentQueues(), source, source.hurry, client, clock, users, user)
        bell = Bell(self.run_dir, source.hurry, gate.heard, clock)
        await bell.reconcile()
        await gate.reconcile()
        for name in ("bell", "prolog", ALLOWED):
            os.chown(self.run_dir / name, user, group)
        self.meshd = Meshd(gate, [asyncio.create_task(one.run()) for one in (source, gate, bell)])

    async def submit(self, *words: str) -> str:
        return (await self.ask("sbatch", "--parsable", "-o", "/dev/null", *words)).strip()

    async def ask(self, *argv: str) -> str:
        return await asyncio.to_thread(self.head.call, *argv, check=False)

    async def state(self, job: str) -> str:
        return (await self.ask("squeue", "-h", "-o", "%T", "-j", job)).strip()

    async def states(self) -> Counter[str]:
        return Counter((await self.ask("squeue", "-h", "-a", "-r", "-o", "%T")).split())

    async def nodes(self) -> list[str]:
        return (await self.ask("sinfo", "-h", "-N", "-p", "h100", "-o", "%t")).split()

    async def gates(self) -> list[str]:
        return os.listdir(self.run_dir / "prolog")

    async def waiting_jobs(self) -> list[str]:
        """Whose prologs wait at their FIFOs, for the slurmctld that runs now. One that was killed leaves its FIFO."""
        lines = (await self.ask("ps", "-ww", "-eo", "pid=,ppid=,args=")).splitlines()
        parents = dict(line.split()[:2] for line in lines)
        at_fifo = {found for line in lines for found in AT_FIFO.findall(line)}
        return [job for job, pid in at_fifo if parents.get(pid, ORPHAN) != ORPHAN]

    async def until_state(self, job: str, state: str, within_s: float = 60.0) -> float:
        began_s = time.monotonic()
        await waiting.until(lambda: self.state(job), lambda now: now == state, f"{job} {state}", within_s)
        return time.monotonic() - began_s

    async def waits(self, job: str) -> None:
        """Until its prolog waits."""
        await self.until_state(job, "CONFIGURING", 200)
        await waiting.until(self.waiting_jobs, lambda now: job in now, f"the prolog of {job}")

    async def boot(self, *numbers: int) -> None:
        for number in numbers:
            host = self.lab.hosts[f"m{number}"]
            words = (f"nodename=h100-{number}", f"nodeaddr={host.address}", f"nodehostname=h100-{number}")
            await self.ask("scontrol", "update", *words)
            await asyncio.to_thread(
                host.start_slurmd, "-b", "--conf-server", "100.64.77.1:6817", "-N", f"h100-{number}"
            )

    async def until_up(self, count: int) -> None:
        def up(states: list[str]) -> bool:
            return sum(not set("~#%*!") & set(state) for state in states) == count

        await waiting.until(self.nodes, up, f"{count} nodes up")

    async def empty(self) -> None:
        """No job, no machine, no FIFO."""
        if self.meshd is None:
            await self.start_meshd()
        await self.ask("scancel", "-u", "root")
        for name in ("m1", "m2"):
            await asyncio.to_thread(self.lab.hosts[name].stop, "slurmd")
        await waiting.until(self.states, lambda now: not set(now) - {"COMPLETING"}, "no job")
        for state in ("down reason=test", "power_down_force"):
            await self.ask("scontrol", "update", "nodename=h100-[1-4]", *f"state={state}".split())
        await waiting.until(self.nodes, lambda now: now == ["idle~"] * 4, "no node is up")
        await waiting.until(self.waiting_jobs, lambda now: not now, "no prolog waits")
        for name in await self.gates():
            (self.run_dir / "prolog" / name).unlink(missing_ok=True)


@pytest.fixture
async def cluster(lab: Lab, tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(lab, tmp_path)
    await cluster.start_meshd()
    yield cluster
    await cluster.empty()
    assert cluster.meshd
    await cluster.meshd.kill()


async def test_a_gang_starts_with_its_last_node_and_the_next_job_at_once(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    job = await cluster.submit("-N2", "--wrap", "sleep 300")
    await cluster.waits(job)
    await cluster.boot(1)
    await cluster.until_up(1)
    assert await cluster.state(job) == "CONFIGURING"
    await cluster.boot(2)
    await cluster.until_up(2)
    took_s = await cluster.until_state(job, "RUNNING")
    assert took_s < SLURM_LOOKS_S / 3
    record_property("registration_to_running_s", took_s)
    assert await cluster.gates() == []
    second = await cluster.submit("-N1", "-w", "h100-1", "-n1", "--oversubscribe", "--wrap", "sleep 300")
    assert await cluster.until_state(second, "RUNNING") < SLURM_LOOKS_S / 3


@pytest.mark.nightly
async def test_two_hundred_jobs_at_once(cluster: Cluster, record_property: Callable[[str, object], None]) -> None:
    await cluster.submit("--array=1-200", "-n1", "--wrap", "sleep 300")
    await waiting.until(cluster.states, lambda now: now == {"CONFIGURING": 200}, "all have their nodes", 120)
    await waiting.until(cluster.gates, lambda now: len(now) == 200, "all prologs wait", 120)
    await cluster.boot(1, 2)
    await cluster.until_up(2)
    began_s = time.monotonic()
    await waiting.until(cluster.states, lambda now: now == {"RUNNING": 200}, "all run", 120)
    record_property("registration_to_running_s", time.monotonic() - began_s)
    assert await cluster.gates() == []


async def test_requeue_reconfigure_and_restarts_while_it_waits(cluster: Cluster) -> None:
    job = await cluster.submit("-N2", "--requeue", "--wrap", "sleep 300")
    await cluster.waits(job)
    await cluster.ask("scontrol", "requeue", job)
    await cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now")
    await cluster.waits(job)
    await cluster.ask("scontrol", "reconfigure")
    await cluster.waits(job)
    for sig in ("TERM", "KILL"):
        await asyncio.to_thread(lambda sig=sig: cluster.head.stop("slurmctld", sig=sig))
        await cluster.ask("rm", "-f", "/run/slurm/slurmctld.pid")
        await asyncio.to_thread(cluster.head.start_slurmctld)
        await cluster.waits(job)
    assert cluster.meshd
    await cluster.meshd.kill()
    await cluster.start_meshd()
    await cluster.waits(job)
    await cluster.boot(1, 2)
    await cluster.until_up(2)
    assert await cluster.until_state(job, "RUNNING") < SLURM_LOOKS_S / 3


async def test_a_job_that_gets_its_nodes_while_meshd_restarts_starts_with_the_last_of_them(cluster: Cluster) -> None:
    """kill -9 of meshd, which systemd starts again: its directory is still there."""
    assert cluster.meshd
    await cluster.meshd.kill()
    job = await cluster.submit("-N2", "--wrap", "sleep 300")
    await cluster.waits(job)
    await cluster.ask("scontrol", "reconfigure")
    await cluster.waits(job)
    await cluster.start_meshd()
    await cluster.boot(1, 2)
    await cluster.until_up(2)
    assert await cluster.until_state(job, "RUNNING") < SLURM_LOOKS_S / 3


async def test_when_meshd_is_stopped_slurm_starts_the_job(cluster: Cluster) -> None:
    """systemd removes meshd's directory then."""
    waiting_job = await cluster.submit("-N1", "--wrap", "sleep 300")
    await cluster.waits(waiting_job)
    assert cluster.meshd
    await cluster.meshd.kill()
    cluster.meshd = None
    await cluster.ask("rm", "-rf", "/run/meshd")
    later_job = await cluster.submit("-N1", "--wrap", "sleep 300")
    await cluster.until_state(later_job, "CONFIGURING", 200)
    await waiting.until(cluster.waiting_jobs, lambda now: not now, "no prolog waits", 10)
    await cluster.boot(1, 2)
    for job in (waiting_job, later_job):
        await cluster.until_state(job, "RUNNING", 90)


async def test_a_job_that_is_cancelled_leaves_nothing(cluster: Cluster) -> None:
    job = await cluster.submit("-N2", "--wrap", "sleep 300")
    await cluster.waits(job)
    await cluster.ask("scancel", job)
    assert await cluster.until_state(job, "") < SLURM_LOOKS_S / 3
    await waiting.until(cluster.gates, lambda now: not now, "its FIFO is removed at once", SILENT_S / 2)


async def test_a_node_that_it_does_not_concern_is_left_alone(cluster: Cluster) -> None:
    job = await cluster.submit("-N1", "--wrap", "sleep 300")
    await cluster.waits(job)
    states = parse_nodes(await cluster.ask("scontrol", "show", "node", "own-1", "-o"))["own-1"].states
    assert "DOWN" in states
    assert not [word for word in states if word.startswith("POWER")], "neither powered down nor about to be"


@pytest.mark.nightly
async def test_when_meshd_does_not_come_back_slurm_starts_the_job(cluster: Cluster) -> None:
    """Its directory is there still: systemd is about to start it, or it hangs."""
    job = await cluster.submit("-N2", "--wrap", "sleep 300")
    await cluster.waits(job)
    assert cluster.meshd
    await cluster.meshd.kill()
    cluster.meshd = None
    await waiting.until(cluster.gates, lambda now: not now, "the prolog gives up", 120)
    await cluster.boot(1, 2)
    await cluster.until_state(job, "RUNNING", 90)


async def test_a_person_at_a_terminal_is_told(cluster: Cluster) -> None:
    argv = cluster.head.argv(["srun", "-N1", "sleep", "300"])
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        await waiting.until(cluster.states, lambda now: now == {"CONFIGURING": 1}, "it has its node")
        (job,) = (await cluster.ask("squeue", "-h", "-o", "%i")).split()
        await SlurmClient(cluster.head.runner, 10.0).tell(job, "meshd: 1 machine boots")
        assert process.stderr
        async with asyncio.timeout(20):
            while b"meshd: 1 machine boots" not in (line := await process.stderr.readline()):
                assert line
    finally:
        await cluster.ask("scancel", "-u", "root")  # a signal would end nsenter alone
        async with asyncio.timeout(60):
            await process.communicate()
