"""slurmctld keeps running on the last good files, whatever happens to them; people are told what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from tests.e2e.lab import WAIT_FOR_WORD, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

FILES = "/var/lib/meshd-slurm"
OWN = "/var/lib/meshd/slurm"


async def no_problems(lab: Lab) -> None:
    """Wait until meshd has seen that its problems are over."""

    async def none() -> bool:
        return not await lab.problems()

    await lab.until(none, "no problem is told any more")


@pytest.mark.any_machines
async def test_garbage_in_nodes_conf(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.have(1)
    job = await lab.sbatch(WAIT_FOR_WORD)
    busy = (await lab.by_slot())[await lab.running(job)]["machine"]
    await lab.head.shell(f"printf 'NodeName=h100-[1-\\n<<<<<<< HEAD\\n' >>{FILES}/nodes.conf")

    await lab.have(2)
    told = await lab.problems()
    figure(f"told: {told}")
    assert "edited by hand" in told
    assert "remove *.edited" in told
    assert "<<<<<<<" in await lab.head.shell(f"cat {OWN}/nodes.conf.edited")
    assert "<<<<<<<" not in await lab.head.shell(f"cat {FILES}/nodes.conf")
    assert await lab.srun("-N1", "printenv", "SLURMD_NODENAME") in await lab.by_slot()

    assert (await lab.job(job))["JobState"] == "RUNNING"
    await lab.inside(busy, "touch", f"/tmp/end-{job}")
    assert (await lab.completed(job))["Restarts"] == "0"
    await lab.head.shell(f"rm {OWN}/*.edited")
    await no_problems(lab)


@pytest_asyncio.fixture(loop_scope="session")
async def full_disk(lab: Lab) -> AsyncIterator[Lab]:
    """The directory of Slurm's files lies on a disk that is full."""
    await lab.have(1)
    # Beside Slurm's files lies what `meshctl init` changed before, and that grows.
    small = f"mount -t tmpfs -o size=$(($(du -sk {FILES} | cut -f 1) + 64))k,mode=0755 none {FILES}"
    await lab.head.shell(
        f"cp -a {FILES} /root/slurm-files; {small}; trap 'umount -l {FILES}; rm -rf /root/slurm-files' EXIT;"
        f"cp -a /root/slurm-files/. {FILES}/; cat /dev/zero >{FILES}/ballast 2>/dev/null || true; trap - EXIT"
    )
    yield lab
    await lab.head.shell(f"cp -a {FILES}/. /root/slurm-files/; umount -l {FILES}; rm -f /root/slurm-files/ballast;"
                         f"cp -a /root/slurm-files/. {FILES}/; rm -rf /root/slurm-files")  # fmt: skip


REQUEST = """
import json, os, sys, time
path, answer = "/run/meshd/slurm-files.request", "/run/meshd-slurm/answer.json"
began = time.monotonic()
fd = os.open(path + ".x", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
os.write(fd, json.dumps({"id": "evil", "nodes": "PluginDir=/tmp/evil\\n", "gres": ""}).encode())
os.rename(path + ".x", path)
while json.load(open(answer))["id"] != "evil" and time.monotonic() < began + 60:
    time.sleep(0.005)
print(f"{time.monotonic() - began:.3f}")
"""


@pytest.mark.any_machines
async def test_root_owns_what_its_tools_read(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.have(1)
    shown = await lab.head.shell(f"stat -c '%U %a %n' {FILES} {FILES}/nodes.conf {FILES}/gres.conf")
    assert shown.splitlines() == [f"root 755 {FILES}", f"root 644 {FILES}/nodes.conf", f"root 644 {FILES}/gres.conf"]
    before = await lab.head.shell(f"cat {FILES}/nodes.conf")
    took = (await lab.head.run("runuser", "-u", "slurm", "--", "python3", "-c", REQUEST)).text
    figure(f"root's unit answered after {took} s")
    assert '"ok": false' in await lab.head.shell("cat /run/meshd-slurm/answer.json")
    assert await lab.head.shell(f"cat {FILES}/nodes.conf") == before
    # What is no file is taken away too, and the next request is served.
    for name in ("slurm-files.request", "hosts.request", "munge-key.request", "restart-slurmctld"):
        await lab.head.run("runuser", "-u", "slurm", "--", "mkdir", "-p", f"/run/meshd/{name}/x")

        async def gone(path: str = f"/run/meshd/{name}") -> bool:
            return (await lab.head.run("test", "-e", path, check=False)).returncode == 1

        await lab.until(gone, f"{name} is taken away")
    units = "meshd-slurm.path meshd-hosts.path meshd-munge.path meshd-slurmctld.path"
    shown = await lab.head.shell(f"systemctl is-active {units}")
    assert shown.split() == ["active"] * 4
    await lab.have(2)


@pytest.mark.any_machines
async def test_a_full_disk(full_disk: Lab, figure: Callable[[str], None]) -> None:
    lab = full_disk
    (slot,) = await lab.by_slot()
    await lab.want(2)

    async def told() -> str | None:
        problems = await lab.problems()
        return problems if "No space left" in problems else None

    words = await lab.until(told, "`meshctl status` tells of the full disk")
    figure(f"told: {words}")
    assert "cannot be written" in words
    assert "last good" in words
    assert "make room" in words
    assert await lab.srun("-N1", "printenv", "SLURMD_NODENAME") in await lab.by_slot()
    if not (await lab.slots())[slot].cloud:  # else its address is in force without the file, and it joins all the same
        assert await lab.joined_slots() == {slot}

    await lab.head.shell(f"rm {FILES}/ballast")
    slots = set(await lab.ready(2))
    await no_problems(lab)
    said = await lab.srun("-N2", "printenv", "SLURMD_NODENAME")
    assert slot in slots and set(said.split()) == slots


@pytest.mark.any_machines
async def test_an_upgrade_keeps_all_nodes(lab: Lab) -> None:
    """As an older meshd left it: the files are SlurmUser's, and the links lead there. Root takes them over."""
    await lab.have(2)
    job = await lab.sbatch(WAIT_FOR_WORD)
    busy = (await lab.by_slot())[await lab.running(job)]["machine"]
    nodes = await lab.head.shell(f"cat {FILES}/nodes.conf")
    await lab.head.shell(
        f"systemctl stop meshd meshd-slurm.path; install -d -o slurm -g slurm {OWN};"
        f"install -o slurm -g slurm -m 644 {FILES}/nodes.conf {FILES}/gres.conf {OWN}/; rm -rf {FILES};"
        f"ln -sfn {OWN}/nodes.conf /etc/slurm/nodes.conf; ln -sfn {OWN}/gres.conf /etc/slurm/meshd-gres.conf;"
        "scontrol ping"
    )
    # What the installer runs.
    await lab.head.run("/opt/meshd/venv/bin/python", "-I", "-m", "meshd.slurm.headfiles", "--adopt")
    await lab.head.run("systemctl", "start", "meshd", timeout_s=60)
    assert await lab.head.shell(f"cat {FILES}/nodes.conf") == nodes
    assert await lab.head.shell("readlink /etc/slurm/nodes.conf") == f"{FILES}/nodes.conf"
    await lab.ready(2)
    assert (await lab.job(job))["JobState"] == "RUNNING"
    await lab.inside(busy, "touch", f"/tmp/end-{job}")
    assert (await lab.completed(job))["Restarts"] == "0"
    await lab.have(3)
    await no_problems(lab)
    assert (await lab.head.run("test", "-e", f"{OWN}/nodes.conf", check=False)).returncode == 1
