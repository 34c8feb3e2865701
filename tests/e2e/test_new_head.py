"""A head is destroyed under jobs, and a new one is made of its backup: it has the machines, the jobs and the keys."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from deploy.sandbox.cluster import Cluster, ClusterOptions
from deploy.sandbox.headmachine import NAME
from deploy.sandbox.headmachine import USER as FIRST_USER
from meshd.contract.faults import CloudFault, FaultKind, When
from meshd.store.state_copy import unlisted
from tests.e2e.lab import QUICK, SLURM, USER, WAIT_FOR_WORD, Lab

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # tests/unit/backup proves the parts
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

SITE = ("etc/slurm", "var/spool/slurmctld")
"""What the site backs up itself: Slurm's settings, and its StateSaveLocation."""


@pytest_asyncio.fixture(loop_scope="module")
async def lab() -> AsyncIterator[Lab]:
    options = ClusterOptions(
        sandbox_id=f"nh{os.getpid() % 100000}", timing={**QUICK, "orphan_grace_s": 6.0}, boot_s=0.2, end_s=0.2,
        slurm=SLURM,
    )  # fmt: skip
    async with Cluster(options) as cluster:
        await cluster.bring_up_head()
        await cluster.head.run("useradd", "--create-home", USER)
        yield Lab(cluster)


async def new_head(lab: Lab, site: bytes, archive: bytes) -> None:
    """Install it by docs/operations.md, with what the site has backed up, and restore the archive."""
    head = lab.head
    await head.boot()
    for user in (FIRST_USER, USER):
        await head.run("useradd", "--create-home", user)
    await head.run("tar", "-x", "-C", "/", stdin=site)
    await head.install()
    await head.shell(f"sed -i '/[[:space:]]head$/d' /etc/hosts; echo '{head.tailnet_ip} head' >>/etc/hosts")
    await head.run("sh", "-c", "umask 077; cat >/root/head.tar", stdin=archive)

    told = await lab.meshctl("restore", "--yes", "--tailnet", "/root/head.tar")
    assert told.returncode == 0, told.stderr.decode()
    assert "systemctl restart munge" in told.stderr.decode()
    await head.run("systemctl", "restart", "munge")
    await head.run("meshctl", "init", "--yes", timeout_s=120)
    await head.run("install", "-d", "-o", "slurm", "-g", "slurm", "/var/log/slurm")
    await head.run("systemctl", "start", "slurmctld")
    await head.run("systemctl", "enable", "--now", "meshd", timeout_s=180)


async def exchange(lab: Lab, machine: str) -> None:
    """Give a machine back, and wait until another one is there for it."""
    before = set(await lab.nodes())
    done = await lab.meshctl("remove", "--yes", machine)
    assert done.returncode == 0, done.stderr.decode()

    async def exchanged() -> bool:
        rows = await lab.nodes()
        return machine not in rows and [row["phase"] for row in rows.values()] == ["ready"] * len(before)

    await lab.until(exchanged, f"another machine is there for {machine}")


async def running_jobs(lab: Lab) -> dict[str, tuple[str, str]]:
    """By id, the node and the start of each job that runs."""
    ids = (await lab.head.run("squeue", "--noheader", "--states=RUNNING", "--format=%A")).text.split()
    found = {job: await lab.job(job) for job in ids}
    return {job: (told["NodeList"], told["StartTime"]) for job, told in found.items()}


async def saved(lab: Lab) -> None:
    """Wait until slurmctld has saved all that happened so far, which it does some seconds later."""
    await lab.head.run("touch", "/root/now")
    first = next(iter(await running_jobs(lab)))
    await lab.head.run("scontrol", "update", f"jobid={first}", "comment=saved")

    async def newer() -> bool:
        return bool((await lab.head.run("find", f"/{SITE[1]}/job_state", "-newer", "/root/now")).text.strip())

    await lab.until(newer, "slurmctld saves its state")


async def test_a_new_head_takes_the_machines_over(lab: Lab, figure: Callable[[str], None]) -> None:
    head, address = lab.head, lab.head.tailnet_ip
    await lab.scale(3)
    job = await lab.sbatch(WAIT_FOR_WORD)
    node = await lab.running(job)
    busy = (await lab.by_slot())[node]["machine"]
    idle = sorted(set(await lab.nodes()) - {busy})
    slots_then = {row["machine"]: slot for slot, row in (await lab.by_slot()).items()}
    key = (await head.run("sha256sum", "/etc/munge/munge.key")).text
    await head.run("meshctl", "backup", "--output", "/root/head.tar")
    archive = (await head.run("cat", "/root/head.tar")).stdout

    # What the archive does not know: two machines went since, and two others came.
    for one in idle:
        await exchange(lab, one)
    machines = {row["machine"]: slot for slot, row in (await lab.by_slot()).items()}
    assert machines.keys() & {busy, *idle} == {busy}
    figure(f"slots in the backup: {slots_then}; since: {machines}")
    ever = len(lab.ledger())
    for _ in idle:  # and two jobs on these
        await lab.running(await lab.sbatch(WAIT_FOR_WORD))
    jobs = await running_jobs(lab)
    assert {at for at, _ in jobs.values()} == set(machines.values())

    await saved(lab)
    # slurmctld goes on writing meanwhile, each file as a whole: tar ends with 1 then.
    site = (await head.run("sh", "-c", f"tar -c -C / {' '.join(SITE)} || [ $? = 1 ]")).stdout
    await lab.cluster.world.hypervisor.destroy(NAME)
    await new_head(lab, site, archive)

    assert (await head.run("tailscale", "ip", "-4")).text == address
    assert (await head.run("sha256sum", "/etc/munge/munge.key")).text == key
    owners = await head.run("stat", "-c", "%U %A", "/etc/munge/munge.key", "/var/lib/meshd/journal.db")
    of_key, of_journal = owners.text.splitlines()
    assert of_key.startswith("munge -r") and of_key.endswith("------") and of_journal == "slurm -rw-------"

    async def adopted() -> bool:
        rows = await lab.nodes()
        return {row["machine"]: row["slot"] for row in rows.values() if row["phase"] == "ready"} == machines

    await lab.until(adopted, "the new head has the machines, and each in its slot")

    async def answers() -> bool:
        slots = await lab.slots()
        return not any({"NOT_RESPONDING", "DOWN"} & slots[slot].states for slot in machines.values())

    await lab.until(answers, "slurmctld reaches each")
    assert len(lab.ledger()) == ever, "nothing was rented"
    assert {machine.token for machine in lab.alive()} == machines.keys(), "nothing was ended"
    assert await running_jobs(lab) == jobs
    for late in jobs.keys() - {job}:
        at = jobs[late][0]
        await lab.inside(next(machine for machine, slot in machines.items() if slot == at), "touch", f"/tmp/end-{late}")
        assert (await lab.completed(late))["Restarts"] == "0"
    ran = await lab.srun("-N2", "--gpus=2", "--gpus-per-node=1", "printenv", "SLURMD_NODENAME")
    assert set(ran.split()) == set(machines.values()) - {node}
    failed = {name: row for name, row in (await lab.checks()).items() if row["status"] == "fail"}
    assert not failed

    # Its keys are the nodes' keys, and those by which machines come.
    assert (await lab.ask("rotate-key", "--munge", "--yes", timeout_s=120))["stage"] == "done"
    await lab.scale(4)
    assert machines.keys() < set(await lab.nodes())

    await lab.inside(busy, "touch", f"/tmp/end-{job}")
    assert (await lab.completed(job))["Restarts"] == "0"
    await lab.scale(0)
    await lab.nothing_left()
    assert not unlisted(await head.root() / "var/lib/meshd")
    figure(f"problems in the end: {await lab.problems() or 'none'}")


async def test_a_cloud_that_cannot_be_listed_is_waited_for(lab: Lab, figure: Callable[[str], None]) -> None:
    head = lab.head
    # The backup has a target, and none of the machines that are rented for it right after.
    assert (await lab.meshctl("freeze", "--reason", "for a backup")).returncode == 0
    assert (await lab.meshctl("scale", "--gpus", "2", "--yes")).returncode == 0
    await head.run("meshctl", "backup", "--output", "/root/head.tar")
    archive = (await head.run("cat", "/root/head.tar")).stdout
    assert (await lab.meshctl("thaw")).returncode == 0
    machines = {row["machine"]: slot for slot, row in (await lab.ready(2)).items()}
    job = await lab.sbatch(WAIT_FOR_WORD, "-N2", "--gpus=2", "--gpus-per-node=1")
    await lab.running(job)
    jobs, ever = await running_jobs(lab), len(lab.ledger())
    await saved(lab)
    site = (await head.run("sh", "-c", f"tar -c -C / {' '.join(SITE)} || [ $? = 1 ]")).stdout
    await lab.cluster.world.hypervisor.destroy(NAME)

    # The worst case: the cloud takes orders, and does not say what it has.
    lab.fault(CloudFault(FaultKind.ERROR_BEFORE, "list", When.ALWAYS, status=503))
    await new_head(lab, site, archive)
    (shown,) = [one for one in (await lab.status())["problems"] if one["code"] == "restored_unlisted"]
    assert "aws" in shown["text"] and "`meshctl thaw --provider aws`" in shown["cure"]
    assert (await lab.meshctl("thaw")).returncode == 0, "that of the backup: the cloud is waited for all the same"
    late = await lab.sbatch(WAIT_FOR_WORD)
    await lab.restart_meshd()

    async def wanted() -> bool:
        """Slurm powers a slot up for the job, and meshd has looked at it several times since."""
        return (await lab.job(late))["JobState"] == "CONFIGURING" and time.monotonic() > until

    until = time.monotonic() + 20
    await lab.until(wanted, "the job waits for a machine")
    assert "restored_unlisted" in await lab.problem_codes()
    plan = await lab.ask("plan")
    assert (len(lab.ledger()), plan["adds"]) == (ever, 0), plan
    assert {one.token for one in lab.alive()} == machines.keys(), "nothing was ended"
    assert await running_jobs(lab) == jobs

    lab.cluster.clouds.clouds["aws"].faults.clear()
    begun = time.monotonic()

    async def adopted() -> bool:
        rows = await lab.nodes()
        ready = {row["machine"]: row["slot"] for row in rows.values() if row["phase"] == "ready"}
        return machines.items() <= ready.items()

    await lab.until(adopted, "the machines are adopted, each in its slot")
    figure(f"adopted {time.monotonic() - begun:.1f} s after the cloud could be listed again")
    node = await lab.running(late)
    assert node not in machines.values()
    assert len(lab.ledger()) == ever + 1, "one was rented, for the job that waited"
    assert machines.keys() < {one.token for one in lab.alive()}
    assert "restored_unlisted" not in await lab.problem_codes()
    assert jobs.items() <= (await running_jobs(lab)).items()

    for one, ends in ((job, min(machines, key=lambda name: machines[name])), (late, "")):
        at = ends or (await lab.by_slot())[node]["machine"]
        await lab.inside(at, "touch", f"/tmp/end-{one}")
        assert (await lab.completed(one))["Restarts"] == "0"
    await lab.scale(0)
    await lab.nothing_left()
