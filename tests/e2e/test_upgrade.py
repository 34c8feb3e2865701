"""An upgrade from the last meshd whose pools people alone scaled, and both ways between the two forms, under a job."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from deploy.sandbox.cluster import Cluster, ClusterOptions
from deploy.sandbox.headmachine import CHECKOUT
from meshd.codes import ProblemCode
from tests.e2e.lab import BY_HAND, QUICK, SLURM, USER, WAIT_FOR_WORD, Lab

FORMER = "406b6932"
"""The last commit before Slurm's queue drove pools."""
FORMER_FORM = 10
"""The form of its journal."""
OLD = "/srv/former"


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
async def former() -> AsyncIterator[Lab]:
    """A cluster on whose head the former meshd runs."""
    options = ClusterOptions(
        sandbox_id=f"up{os.getpid() % 100000}", timing=QUICK, key_mode="reusable", boot_s=0.2, end_s=0.2, slurm=SLURM
    )
    async with Cluster(options) as cluster:
        head, wanted = cluster.head, cluster.head_options()
        await head.boot()
        await head.run("mkdir", OLD)
        await head.run("tar", "-x", "-C", OLD, stdin=_git("archive", FORMER).stdout)
        await asyncio.gather(head.join_tailnet(wanted), head.install(OLD))
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


async def back(lab: Lab, journal: str) -> None:
    """Go back to the former version, as docs/operations.md says; `journal` puts one in the place of that of today."""
    await lab.head.run("systemctl", "stop", "meshd")
    await lab.head.write("/etc/meshd/meshd.toml", replace(lab.cluster.options, pool="").settings())
    await lab.head.shell(f"cd /var/lib/meshd; rm -f journal.db journal.db-wal journal.db-shm; {journal}")
    await lab.head.install(OLD)
    await lab.head.run("systemctl", "start", "meshd")


class Work:
    """A job that runs meanwhile, and the machine that it has."""

    def __init__(self, lab: Lab, job: str, node: str, machine: str, started: str) -> None:
        self._lab, self._started = lab, started
        self.job, self.node, self.machine = job, node, machine

    @classmethod
    async def begin(cls, lab: Lab) -> Work:
        """Have an ordinary user start it."""
        job = await lab.sbatch(WAIT_FOR_WORD)
        node = await lab.running(job)
        return cls(lab, job, node, (await lab.by_slot())[node]["machine"], (await lab.job(job))["StartTime"])

    async def goes_on(self) -> None:
        """It still runs there, and was never begun anew."""
        job = await self._lab.job(self.job)
        assert (job["JobState"], job["NodeList"], job["StartTime"]) == ("RUNNING", self.node, self._started)
        assert (await self._lab.by_slot())[self.node]["machine"] == self.machine

    async def end(self) -> None:
        """Let it end well."""
        await self.goes_on()
        await self._lab.inside(self.machine, "touch", f"/tmp/end-{self.job}")
        await self._lab.completed(self.job)


async def test_machines_and_jobs_stay_over_an_upgrade(former: Lab) -> None:
    lab = former
    await lab.scale(2)
    machines = set(await lab.nodes())
    work = await Work.begin(lab)
    waits = await lab.sbatch("srun hostname", "--gpus=3", "--gpus-per-node=1", "-N3")

    await lab.head.install()
    kept = await lab.head.shell("cd /var/lib/meshd; stat -c '%n %a' journal.db.form-*")
    assert kept == f"journal.db.form-{FORMER_FORM} 600"
    assert machines == set(await lab.nodes())
    await back(lab, f"runuser -u slurm -- cp journal.db.form-{FORMER_FORM} journal.db")
    assert machines == set(await lab.nodes())
    await work.goes_on()
    await lab.head.install()
    assert machines == set(await lab.nodes())
    assert (await lab.job(waits))["JobState"] == "PENDING"
    assert not any(slot.cloud for slot in (await lab.slots()).values()), "before `meshctl init` nothing changes"

    told = await lab.meshctl("init", "--yes")
    assert told.returncode == 0, told.stderr.decode()
    await lab.head.run("systemctl", "restart", "slurmctld")
    await lab.head.run("systemctl", "reload", "meshd")
    await formed(lab, work.node, by_queue=True)
    await lab.completed(waits)  # on the machine that was free, and on two that were rented for it
    assert machines < set(await lab.nodes())
    more = await Work.begin(lab)

    await form(lab, work.node, more.node, by_queue=False)
    await work.goes_on()
    await more.goes_on()
    await form(lab, work.node, more.node, by_queue=True)
    await more.end()
    # What differs is its line alone, and that is no fault of Slurm's files.
    codes = await lab.problem_codes()
    assert ProblemCode.SLOT_LINE_KEPT in codes and ProblemCode.SLURM_FILES_REFUSED not in codes
    await work.end()
    await formed(lab, by_queue=True)

    await lab.scale(0)
    assert (await lab.srun("--gpus=1", "hostname")).strip()  # an empty pool rents
