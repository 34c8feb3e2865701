"""An upgrade from the last meshd whose pools people alone scaled, and both ways between the two forms, under a job."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from deploy.sandbox.cluster import Cluster, ClusterOptions
from deploy.sandbox.headmachine import CHECKOUT
from deploy.sandbox.package import build
from meshd.codes import ProblemCode
from tests.e2e.lab import BY_HAND, QUICK, SLURM, USER, WAIT_FOR_WORD, Lab
from tests.e2e.packages import apt, unit

FORMER = "406b6932"
"""The last commit before Slurm's queue drove pools."""
FORMER_FORM = 10
"""The form of its journal."""
OLD = "/srv/former"
STATE = "/var/lib/meshd"
COPY = f"{STATE}/journal.db.form-{FORMER_FORM}"
PACKAGE = "/root/meshd.deb"
SETTINGS = "/etc/meshd/meshd.toml"
VENV = "/opt/meshd/venv"
KEPT_VENV = "/root/venv"


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(CHECKOUT), *words], capture_output=True, check=False)


def _has_former() -> bool:
    """Whether the history reaches so far: a shallow clone's, and a release's archive, do not."""
    try:
        return _git("cat-file", "-e", f"{FORMER}^{{commit}}").returncode == 0
    except FileNotFoundError:
        return False


pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # the parts are in test_migrations, test_slurm_power and test_queue
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not _has_former(), reason=f"the history lacks {FORMER}: git fetch --unshallow"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def former(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    """A cluster on whose head the former meshd runs; today's is there as a package."""
    package = await build(CHECKOUT, tmp_path_factory.mktemp("dist"))
    options = ClusterOptions(
        sandbox_id=f"up{os.getpid() % 100000}", timing=QUICK, key_mode="reusable", boot_s=0.2, end_s=0.2, slurm=SLURM
    )
    async with Cluster(options) as cluster:
        head, wanted = cluster.head, cluster.head_options()
        await head.boot()
        await asyncio.to_thread(shutil.copy, package, await head.root() / PACKAGE.lstrip("/"))
        await head.run("mkdir", OLD)
        await head.run("tar", "-x", "-C", OLD, stdin=_git("archive", FORMER).stdout)
        await asyncio.gather(head.join_tailnet(wanted), head.install(OLD))
        await head.run("cp", "-a", VENV, KEPT_VENV)
        await head.run("tailscale", "set", "--operator=slurm")
        await head.configure(wanted)
        await head.start()
        await head.run("useradd", "--create-home", USER)
        yield Lab(cluster)


async def form(lab: Lab, *busy: str, by_queue: bool) -> None:
    """Have the pool in this form, by its settings, and wait until Slurm's nodes have it."""
    options = replace(lab.cluster.options, pool="" if by_queue else BY_HAND)
    assert await lab.write_settings(options.settings()) == 0
    await formed(lab, *busy, by_queue=by_queue)


async def formed(lab: Lab, *busy: str, by_queue: bool) -> None:
    """Wait until each slot has the form, but those with a job, and each free one shows it."""
    free = {"IDLE", "POWERED_DOWN"} if by_queue else {"DOWN"}

    async def look() -> bool:
        slots = [slot for slot in (await lab.slots()).values() if slot.name not in busy]
        return all(s.cloud == by_queue and (s.address.startswith("100.") or free <= s.states) for s in slots)

    await lab.until(look, f"slots are those of a pool that is driven {'by queue' if by_queue else 'by hand'}")


async def back(lab: Lab) -> None:
    """Go back to the former version, as docs/operations.md says."""
    await lab.head.run("systemctl", "stop", "meshd")
    told = await lab.meshctl("restore", "--yes", COPY)
    assert told.returncode == 0, told.stderr.decode()
    if await packaged(lab):
        await apt(lab.head, "remove", "meshd", env="MESHD_KEEP_MACHINES=yes")
        await lab.head.shell(f"mkdir -p {VENV}; cp -a {KEPT_VENV}/. {VENV}")  # there is no package index here
    await lab.head.write(SETTINGS, replace(lab.cluster.options, pool="").settings())
    await lab.head.install(OLD)
    await lab.head.run("systemctl", "start", "meshd")


async def packaged(lab: Lab) -> bool:
    """Whether meshd is there as a package."""
    return (await lab.head.run("dpkg-query", "-W", "meshd", check=False)).returncode == 0


class Work:
    """A job that runs meanwhile, and the machines that it has, by slot."""

    def __init__(self, lab: Lab, job: str, machines: dict[str, str], started: str) -> None:
        self._lab, self._started = lab, started
        self.job, self.machines = job, machines

    @classmethod
    async def begin(cls, lab: Lab, nodes: int) -> Work:
        """Have an ordinary user start it, with a step on each of so many nodes."""
        each = f"--gpus={nodes}", "--gpus-per-node=1", f"-N{nodes}"
        job = await lab.sbatch(f"srun sh -c '{WAIT_FOR_WORD}'", *each)
        slots = await cls._slots(lab, await lab.running(job))
        rows = await lab.by_slot()
        machines = {slot: rows[slot]["machine"] for slot in slots}
        assert len(machines) == nodes

        async def begun() -> bool:
            return all([await lab.inside(one, "cat", f"/tmp/job-{job}") == "begun" for one in machines.values()])

        await lab.until(begun, "its step is on each node")
        return cls(lab, job, machines, (await lab.job(job))["StartTime"])

    @staticmethod
    async def _slots(lab: Lab, nodes: str) -> list[str]:
        return (await lab.head.run("scontrol", "show", "hostnames", nodes)).text.split()

    async def goes_on(self) -> None:
        """It still runs there, and was never begun anew."""
        job, rows = await self._lab.job(self.job), await self._lab.by_slot()
        assert (job["JobState"], job["StartTime"]) == ("RUNNING", self._started)
        assert await self._slots(self._lab, job["NodeList"]) == list(self.machines)
        assert {slot: rows[slot]["machine"] for slot in self.machines} == self.machines

    async def end(self) -> None:
        """Let it end well."""
        await self.goes_on()
        for machine in self.machines.values():
            await self._lab.inside(machine, "touch", f"/tmp/end-{self.job}")
        await self._lab.completed(self.job)


async def test_machines_and_jobs_stay_over_an_upgrade(former: Lab) -> None:
    lab = former
    await lab.scale(4)
    machines = set(await lab.nodes())
    work = await Work.begin(lab, 4)
    waits = await lab.sbatch("srun hostname", "--gpus=3", "--gpus-per-node=1", "-N3")

    await lab.head.install()
    assert await lab.head.shell(f"stat -c '%n %a' {STATE}/journal.db.form-*") == f"{COPY} 600"
    assert machines == set(await lab.nodes())
    await back(lab)
    assert machines == set(await lab.nodes())
    await work.goes_on()

    # The package takes over from the former installer.
    settings = (await lab.head.run("cat", SETTINGS)).text
    await apt(lab.head, "install", PACKAGE)
    assert await unit(lab.head, "meshd.service") == ("/usr/lib/systemd/system/meshd.service", "enabled", "active")
    assert (await lab.head.run("cat", SETTINGS)).text == settings
    assert machines == set(await lab.nodes())
    await work.goes_on()
    assert (await lab.job(waits))["JobState"] == "PENDING"
    assert not any(slot.cloud for slot in (await lab.slots()).values()), "before `meshctl init` nothing changes"

    told = await lab.meshctl("init", "--yes")
    assert told.returncode == 0, told.stderr.decode()
    await lab.head.run("systemctl", "restart", "slurmctld")
    await lab.head.run("systemctl", "reload", "meshd")
    await formed(lab, *work.machines, by_queue=True)
    await lab.completed(waits)  # on three machines that were rented for it, together
    assert machines < set(await lab.nodes())
    more = await Work.begin(lab, 2)

    await form(lab, *work.machines, *more.machines, by_queue=False)
    await work.goes_on()
    await more.goes_on()
    await form(lab, *work.machines, *more.machines, by_queue=True)
    # What differs is its line alone, and that is no fault of Slurm's files.
    codes = await lab.problem_codes()
    assert ProblemCode.SLOT_LINE_KEPT in codes and ProblemCode.SLURM_FILES_REFUSED not in codes

    # The way back is closed while machines are there that the former version does not know.
    await form(lab, *work.machines, *more.machines, by_queue=False)
    for how in ("--dry-run", "--restart"):
        refused = await lab.meshctl("restore", "--yes", how, COPY)
        assert refused.returncode == 1 and all(one in refused.stderr.decode() for one in more.machines.values())
    await work.goes_on()
    await more.end()

    async def alone() -> bool:
        return set(await lab.nodes()) == machines

    await lab.until(alone, "the machines that came since have left after their job")
    assert (await lab.meshctl("restore", "--dry-run", COPY)).returncode == 0
    await back(lab)
    assert machines == set(await lab.nodes())
    await work.goes_on()

    # And once more to today's version, by the installer: what `meshctl init` has set up is there still.
    await lab.head.install()
    await formed(lab, *work.machines, by_queue=True)
    assert machines == set(await lab.nodes())
    await work.end()
    await formed(lab, by_queue=True)

    await lab.scale(0)
    assert (await lab.srun("--gpus=1", "hostname")).strip()  # an empty pool rents
