"""`meshctl init --accounting` on a head that has none: MariaDB, slurmdbd, and jobs that run meanwhile."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from tests.e2e.lab import WAIT_FOR_WORD, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

CONF = "/etc/slurm/slurm.conf"


@pytest_asyncio.fixture(loop_scope="session")
async def without(lab: Lab) -> AsyncIterator[Lab]:
    """The lab; afterwards it has no accounting, as before."""
    before = (await lab.head.run("cat", CONF)).stdout
    yield lab
    await lab.head.run("sh", "-ec", f"cat >{CONF}", stdin=before)
    await lab.head.run("systemctl", "restart", "slurmctld")
    await lab.head.run("systemctl", "disable", "--quiet", "--now", "slurmdbd", "mariadb")


async def records(lab: Lab, *fields: str) -> dict[str, list[str]]:
    """`sacct` of all jobs, by id."""
    shown = await lab.head.run("sacct", "-anXP", f"--format=jobid,{','.join(fields)}")
    return {job: rest for job, *rest in (line.split("|") for line in shown.text.splitlines())}


async def check(lab: Lab) -> tuple[str, str]:
    """What doctor says of it."""
    rows = (await lab.answer("doctor"))["checks"]
    return next((row["status"], row["code"]) for row in rows if row["name"] == "accounting")


async def test_records_of_jobs(without: Lab, figure: Callable[[str], None]) -> None:
    lab = without
    await lab.have(1)
    assert await check(lab) == ("ok", "")
    job = await lab.sbatch(WAIT_FOR_WORD)
    slot = await lab.running(job)
    (row,) = (await lab.nodes()).values()

    shown = await lab.meshctl("init", "--accounting", "--dry-run")
    assert shown.returncode == 0
    assert "slurm_acct_db" in shown.text
    assert (await lab.head.run("systemctl", "is-active", "mariadb", check=False)).text == "inactive"
    began = time.monotonic()
    done = await lab.meshctl("init", "--accounting", "--yes")
    assert done.returncode == 0, done.stderr.decode()
    figure(f"meshctl init --accounting took {time.monotonic() - began:.1f} s beside a job that had just started")
    again = await lab.meshctl("init", "--accounting", "--dry-run")
    assert "nothing to do" in again.stderr.decode()
    assert await check(lab) == ("ok", "")

    # Nobody needs a password, an association or root.
    stat = await lab.head.run("stat", "-c", "%a %U", "/etc/slurm/slurmdbd.conf")
    assert stat.text == "600 slurm"
    grants = (await lab.head.run("mariadb", "-N", "-e", "SHOW GRANTS FOR slurm@localhost")).text
    assert "unix_socket" in grants
    assert "ON *.*" not in grants.replace("GRANT USAGE ON *.*", "")
    mine = await lab.head.run("runuser", "-u", "alice", "--", "sacct", "-nXP", "--format=jobid,state")
    assert f"{job}|RUNNING" in mine.text.splitlines()

    # The job from before goes on, and its record tells where it ran and how it ended, when the machine is gone.
    assert (await lab.job(job))["JobState"] == "RUNNING"
    await lab.inside(row["machine"], "touch", f"/tmp/end-{job}")
    await lab.completed(job)

    # slurmdbd is away: jobs go on, also over a restart of slurmctld, and what happened is told later.
    await lab.head.run("systemctl", "stop", "slurmdbd")
    await lab.head.run("systemctl", "restart", "slurmctld")
    await lab.srun("-n1", "--gpus=1", "--job-name=meanwhile", "true")

    async def down() -> bool:
        return await check(lab) == ("fail", "accounting_down")

    await lab.until(down, "doctor says that slurmdbd is away")
    await lab.head.run("systemctl", "start", "slurmdbd")
    await lab.have(0)

    async def told() -> dict[str, list[str]] | None:
        found = await records(lab, "jobname", "user", "nodelist", "state", "exitcode", "alloctres")
        ended = [rest for rest in found.values() if rest[0] == "meanwhile" and rest[3] == "COMPLETED"]
        return found if ended else None

    found = await lab.until(told, "the record of the job that ran meanwhile")
    assert found[job][1:5] == ["alice", slot, "COMPLETED", "0:0"]
    assert "gres/gpu=1" in next(rest for rest in found.values() if rest[0] == "meanwhile")[5]


@pytest.mark.any_machines
async def test_a_node_has_the_id_of_its_instance(lab: Lab) -> None:
    await lab.have(1)
    (machine,) = lab.alive()
    (row,) = (await lab.nodes()).values()

    async def shown() -> list[str]:
        text = (await lab.head.run("scontrol", "show", "node", row["slot"])).text
        return [word for word in text.split() if word.startswith("Instance")]

    assert await shown() == [f"InstanceId={machine.id}", f"InstanceType={row['instance_type']}"]
    await lab.have(0)
    assert await shown() == []
