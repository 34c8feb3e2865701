"""Accounts of the head on real nodes, a VM and a pod: they come, change and go, and jobs run as them."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime

import pytest
import pytest_asyncio

from deploy.sandbox import cache, images
from tests.e2e.lab import WAIT_FOR_WORD, Lab
from tests.e2e.pods import COOLDOWN_S, POD_CLOUD, VM_CLOUD

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

ADOPT = "libpam-slurm-adopt"
KEEP = '\n[users]\nimage_accounts = "keep"\n'


@dataclass(frozen=True, slots=True)
class Two:
    """A VM and a pod, both READY; machines by slot."""

    lab: Lab
    machines: dict[str, str]
    vm: str
    pod: str

    async def sh(self, slot: str, script: str, *, check: bool = True) -> str:
        return await self.lab.inside(self.machines[slot], "sh", "-c", script, check=check)

    async def head(self, script: str) -> str:
        return await self.lab.head.shell(script)

    async def same(self, *words: str) -> None:
        """Wait until `getent` and its like answer on both nodes as on the head."""
        script = " ".join(words)

        async def look() -> bool:
            here = await self.lab.head.shell(script, check=False)
            there = [await self.sh(slot, script, check=False) for slot in (self.vm, self.pod)]
            return all(text.strip() == here.strip() for text in there)

        await self.lab.until(look, f"both nodes answer as the head: {script}")

    async def in_jobs(self, user: str) -> None:
        """Wait until a job on both nodes has the groups of the head: Slurm caches them."""
        step = f"runuser -u {user} -- srun --chdir=/ -N2 -w {self.vm},{self.pod}"

        async def look() -> bool:
            here = await self.lab.head.shell(f"id {user}")
            return set((await self.lab.head.shell(f"{step} id")).splitlines()) == {here.strip()}

        await self.lab.until(look, "jobs have the groups of the head")

    async def waited_s(self, job: str) -> float:
        """How long a job had its nodes before it started, by slurmctld's log."""
        lines = (
            await self.head(f"grep -E 'JobId={job} (NodeList|is complete)' /var/log/slurm/slurmctld.log")
        ).splitlines()
        first, last = (datetime.fromisoformat(line[1:].partition("]")[0]) for line in (lines[0], lines[-1]))
        return (last - first).total_seconds()

    async def job(self, user: str, slot: str, script: str) -> str:
        """Submit from the user's home, as people do."""
        argv = [
            "runuser",
            "-u",
            user,
            "--",
            "env",
            f"--chdir=/home/{user}",
            "sbatch",
            "--parsable",
            "--gpus=1",
            "-w",
            slot,
        ]
        return (await self.lab.head.run(*argv, stdin=f"#!/bin/sh\n{script}\n".encode())).text


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two(booted: Lab) -> AsyncIterator[Two]:
    async with booted.enabled(POD_CLOUD, VM_CLOUD) as lab:
        await lab.begin("users")
        await lab.timing(no_capacity_cooldown_s=COOLDOWN_S, unfit_grace_s=0.0)
        lab.room(**{POD_CLOUD: 1, VM_CLOUD: 1})
        await lab.scale(2, "--spread")
        rows = await lab.by_slot()
        where = {row["provider"]: slot for slot, row in rows.items()}
        machines = {slot: row["machine"] for slot, row in rows.items()}
        yield Two(lab, machines, where[VM_CLOUD], where[POD_CLOUD])
        await lab.head.shell("for one in student gone late away; do userdel -r $one; done; groupdel lab", check=False)


async def test_an_account_made_a_moment_ago_runs_jobs(two: Two, figure: Callable[[str], None]) -> None:
    lab = two.lab
    await two.head("groupadd -g 5000 lab")
    began = time.monotonic()
    await two.head("useradd -m -c 'A Student' -G lab -s /bin/bash student")
    await two.same("getent", "passwd", "student")
    figure(f"an account of the head is on both nodes after {time.monotonic() - began:.1f} s")
    await two.same("id", "student")
    script = "id; pwd; echo $HOME; stat -c '%U %G %a' .; ls .bashrc; echo kept >made"
    jobs = {slot: await two.job("student", slot, script) for slot in (two.vm, two.pod)}
    identity = await two.head("id student")
    for slot, job in jobs.items():
        await lab.completed(job)
        said = (await two.sh(slot, f"cat /home/student/slurm-{job}.out")).splitlines()
        assert said == [identity, "/home/student", "/home/student", "student student 700", ".bashrc"]
        assert await two.sh(slot, "stat -c %U /home/student/made") == "student"
        assert (await two.sh(slot, "getent shadow student")).split(":")[1] == "!"
    rows = await lab.checks()
    assert {rows[name]["status"] for name in ("accounts", "node accounts")} == {"ok"}


async def test_ten_accounts_one_after_another_run_jobs_at_once(two: Two, figure: Callable[[str], None]) -> None:
    """On nodes that are up: nobody waits between useradd and the job."""
    lab, jobs = two.lab, list[str]()
    for number in range(1, 11):
        name, slot = f"new{number}", (two.vm, two.pod)[number % 2]
        await two.head(f"useradd -m -G lab {name}")
        jobs.append(await two.job(name, slot, "id; pwd"))
        said = await two.head(f"runuser -l {name} -c 'srun -w {slot} id'")
        identity = await two.head(f"id {name}")
        assert said == identity
        await lab.completed(jobs[-1])
        out = await two.sh(slot, f"cat /home/{name}/slurm-{jobs[-1]}.out")
        assert out.splitlines() == [identity, f"/home/{name}"]
        await two.head(f"userdel -r {name}")  # of many that go at once meshd believes that a file was cut off
    await two.same("getent", "passwd", "new10", "||", "true")
    usual = await two.job("student", two.vm, "id")
    await lab.completed(usual)
    waited_s = sorted([await two.waited_s(job) for job in jobs])
    figure(
        f"the job of an account made a moment ago waits {waited_s[-1]:.2f} s for it at most, {waited_s[5]:.2f} s in the"
        f" middle; one whose account is there waits {await two.waited_s(usual):.2f} s"
    )


async def test_an_account_that_changes(two: Two) -> None:
    await two.head("groupadd -g 5001 more && usermod -s /bin/sh -aG more student && gpasswd -d student lab")
    await two.same("getent", "passwd", "student")
    await two.same("id", "student")
    await two.in_jobs("student")
    await two.head("groupdel more")
    await two.same("id", "student")
    await two.in_jobs("student")


async def test_a_removed_user_whose_job_runs(two: Two) -> None:
    lab = two.lab
    await two.head("useradd -m gone")
    await two.same("id", "gone")
    job = await two.job("gone", two.vm, WAIT_FOR_WORD)
    await lab.running(job)
    await two.head("userdel -r gone")

    async def gone_from_the_pod() -> bool:
        return not await two.sh(two.pod, "getent passwd gone", check=False)

    await lab.until(gone_from_the_pod, "the account is gone where no process of it is")
    assert await two.sh(two.vm, "getent passwd gone")
    await two.sh(two.vm, f"touch /tmp/end-{job}")
    await lab.completed(job)

    async def gone() -> bool:
        return not await two.sh(two.vm, "getent passwd gone; getent group gone", check=False)

    await lab.until(gone, "the account is gone with its last process")
    assert await two.sh(two.vm, "stat -c '%U %a' /home/gone") == "root 700"
    assert await two.sh(two.vm, f"tail -n 1 /home/gone/slurm-{job}.out") == "done"


async def test_a_number_that_an_account_of_the_image_has(two: Two) -> None:
    """`keep` makes the node unfit; `move` is the cure."""
    lab = two.lab
    await two.sh(two.vm, "useradd -m -u 7000 vendor && touch /home/vendor/file && chown vendor: /home/vendor/file")
    settings = lab.settings_with(no_capacity_cooldown_s=COOLDOWN_S, unfit_grace_s=0.0)
    assert await lab.write_settings(settings + KEEP) == 0
    event = await lab.last_event()
    await two.head("useradd -m -u 7000 late")

    async def unfit() -> bool:
        row = (await lab.by_slot())[two.vm]
        return bool(row["unfit"]) and "DRAIN" in (await lab.slots())[two.vm].states

    await lab.until(unfit, "the node is drained")
    assert "node_unfit" in await lab.problem_codes(two.machines[two.vm])
    assert (await lab.slots())[two.vm].reason.startswith("meshd:")
    assert (await two.sh(two.vm, "id -nu 7000")) == "vendor"
    assert (await two.sh(two.pod, "id -nu 7000")) == "late", "the pod has no such account"

    assert await lab.write_settings(settings) == 0
    await two.same("getent", "passwd", "late")

    async def fit() -> bool:
        return "DRAIN" not in (await lab.slots())[two.vm].states

    await lab.until(fit, "the node takes jobs again")
    assert await two.sh(two.vm, "stat -c '%U %u' /home/vendor /home/vendor/file") == "vendor 59999\nvendor 59999"

    async def told() -> bool:
        return any(one["kind"] == "accounts" and "vendor" in one["text"] for one in await lab.events(event))

    await lab.until(told, "an event tells of the move")
    await two.head("userdel -r late")


async def test_a_node_whose_agent_was_off(two: Two) -> None:
    await two.sh(two.vm, "systemctl stop meshd-node")
    await two.head("useradd -m away && userdel -r student")
    job = await two.job("away", two.vm, "id")
    await asyncio.sleep(2)
    assert not await two.sh(two.vm, "getent passwd away", check=False)
    assert await two.head(f"squeue -h -o %T -j {job}") == "CONFIGURING"
    await two.sh(two.vm, "systemctl start meshd-node")
    await two.lab.completed(job)
    await two.same("getent", "passwd", "away")
    await two.same("getent", "passwd", "student", "||", "true")


async def test_300_accounts_at_once(two: Two, figure: Callable[[str], None]) -> None:
    began = time.monotonic()
    await two.head(
        "for n in $(seq 1 300); do echo u$n:x:$((20000 + n)):$((20000 + n))::/home/u$n:/bin/bash; done >>/etc/passwd;"
        "for n in $(seq 1 300); do echo u$n:x:$((20000 + n)):; done >>/etc/group"
    )
    await two.same("getent", "passwd", "u1", "u150", "u300")
    figure(f"300 accounts of the head are on both nodes after {time.monotonic() - began:.1f} s")
    assert await two.sh(two.vm, "stat -c %U /home/u300") == "u300"
    began = time.monotonic()
    await two.head("sed -i '/^u[0-9]*:/d' /etc/passwd /etc/group")
    # More than half of all accounts at once: meshd waits until it believes that.
    await two.lab.until(lambda: held(two.lab), "meshd keeps accounts that are gone all at once")


async def held(lab: Lab) -> bool:
    return "accounts_held" in await lab.problem_codes()


@pytest.mark.nightly
async def test_ssh_only_with_a_job(two: Two) -> None:
    """Debian's pam_slurm_adopt and sshd on the VM."""
    lab = two.lab
    base = await images.ensure_base("trixie")
    debs = await images.fetch_packages(base, "trixie", [ADOPT], cache.log_file("image-adopt"))
    (rented,) = [m for m in lab.all_alive() if m.token == two.machines[two.vm]]
    root = await lab.cluster.world.hypervisor.root(rented.name)
    for deb in (*debs.glob(f"{ADOPT}_*.deb"), *debs.glob("libslurm4*_*.deb")):
        shutil.copy(deb, root / "root" / deb.name)
    await two.head(
        "useradd -m reader; sed -i '$aPrologFlags=Contain' /etc/slurm/slurm.conf; systemctl restart slurmctld"
    )
    await two.same("getent", "passwd", "reader")
    ssh = "ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o ConnectTimeout=10 -i /root/key"
    await two.sh(
        two.vm,
        "dpkg -i /root/*.deb && systemctl restart meshd-slurmd && mkdir -p /run/sshd"
        " && ssh-keygen -q -N '' -f /root/key"
        " && install -d -m 700 -o reader -g reader /home/reader/.ssh /root/.ssh && chown root: /root/.ssh"
        " && cp /root/key.pub /root/.ssh/authorized_keys"
        " && install -m 600 -o reader -g reader /root/key.pub /home/reader/.ssh/authorized_keys && systemctl start ssh",
    )

    async def edited() -> bool:
        return "pam_slurm_adopt" in await two.sh(two.vm, "cat /etc/pam.d/sshd")

    await lab.until(edited, "the agent found the module")

    async def idle() -> bool:
        return (await lab.slots())[two.vm].states == {"IDLE"}

    await lab.until(idle, "the node is idle")
    assert await two.sh(two.vm, f"{ssh} root@localhost id -un") == "root"
    denied = await two.sh(two.vm, f"{ssh} reader@localhost id -un 2>&1", check=False)
    assert "Access denied by pam_slurm_adopt: you have no active jobs on this node" in denied, denied
    job = await two.job("reader", two.vm, WAIT_FOR_WORD)
    await lab.running(job)
    assert await two.sh(two.vm, f"{ssh} reader@localhost id -un") == "reader"
    # The sandbox has no control groups, with which Slurm would make the session part of the job.
    await two.head(f"scancel {job}")

    async def denied_again() -> bool:
        said = await two.sh(two.vm, f"{ssh} reader@localhost id -un 2>&1", check=False)
        return "you have no active jobs" in said

    await lab.until(denied_again, "the user gets in no more")
    await two.head(
        "sed -i '/^PrologFlags=Contain$/d' /etc/slurm/slurm.conf; systemctl restart slurmctld; userdel -r reader"
    )
