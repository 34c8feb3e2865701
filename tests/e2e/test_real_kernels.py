"""Machines with a kernel of their own (user-mode Linux), and a share by these kernels' NFS over a way of 50 ms.

The tests are one story, in order: a node joins while the server is away, gets its share, writes, and both sides fail.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.sandbox import images
from deploy.sandbox.clouds.host import BootDefaults
from deploy.sandbox.cluster import Cluster, ClusterOptions
from tests.e2e.kernel_share import HOME, NAME, PORT, WRITES, Server, distant, host_name, pauses
from tests.e2e.lab import QUICK, SLURM, USER, Lab

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0 or not images.has_uml(), reason="needs root and an amd64 processor"),
]

CUT_S = 15.0
PATIENCE_S = 300.0
"""Such a machine boots in 15 to 25 s where nothing else runs."""


@dataclass
class Rig:
    """A cluster whose nodes have kernels of their own, and whose share is another machine's.

    Attributes:
        begun: when all of it began.
        machine: the node.
        job: the one that writes.
    """

    lab: Lab
    server: Server
    begun: float
    machine: str = ""
    slot: str = ""
    job: str = ""

    async def row(self) -> dict[str, object]:
        row = (await self.lab.nodes())[self.machine]
        assert isinstance(row, dict)
        return row

    async def unfit(self, why: str) -> None:
        async def look() -> bool:
            return (await self.row())["unfit"] == why

        await self.lab.until(look, f"the node is {why or 'fit'}", PATIENCE_S)

    async def written(self, more: int) -> int:
        """Wait until the job has written this number of lines more; how many there are."""
        before = len(await self.server.lines())

        async def look() -> int | None:
            now = len(await self.server.lines())
            return now if now >= before + more else None

        return await self.lab.until(look, f"the job writes {more} more lines", PATIENCE_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig() -> AsyncIterator[Rig]:
    options = ClusterOptions(
        sandbox_id=f"uml{os.getpid() % 100000}", timing={**QUICK, "unfit_grace_s": 1.0, "boot_timeout_s": 600.0},
        key_mode="reusable", boot_s=0.2, end_s=0.2, slurm=SLURM, cpus=1,
        pool="scale_from_queue = false",
    )  # fmt: skip
    begun = time.monotonic()
    async with Cluster(options) as cluster:
        server, lab = Server(cluster.world, cluster.auth_key), Lab(cluster)
        lab.boot(BootDefaults(image="trixie-uml"))

        async def order() -> None:
            await cluster.bring_up_head()
            await cluster.head.run("useradd", "--create-home", USER)
            await lab.want(1)

        # The node boots longer than the server: its share is in the settings before it asks for them.
        await asyncio.gather(order(), server.boot())
        share = f'\n[share.home]\npath = "/home"\nserver = "{server.ip}"\n'
        assert await lab.write_settings(lab.settings_with() + share) == 0
        yield Rig(lab, server, begun)


async def test_a_machine_has_a_kernel_of_its_own(rig: Rig, figure: Callable[[str], None]) -> None:
    figure(f"head and server are there after {time.monotonic() - rig.begun:.0f} s")
    vm = rig.lab.cluster.world.hypervisor
    assert (await rig.server.run("uname", "-r")).text != os.uname().release
    assert (await rig.server.run("stat", "-f", "-c", "%T", "/home")).text == "ext2/ext3"
    await rig.server.run("modprobe", "nfsd")
    with pytest.raises(RuntimeError, match="kernel of its own"):
        await vm.root(NAME)
    assert not Path(f"/sys/class/net/m{vm.address(NAME).rpartition('.')[2]}").exists()


async def test_a_node_whose_server_is_away_waits_and_is_ready_then(rig: Rig, figure: Callable[[str], None]) -> None:
    lab, server = rig.lab, rig.server
    await server.put_user((await lab.head.run("id", "-u", USER)).text)
    await server.set_up()
    await server.run("systemctl", "stop", "nfs-server")

    async def waits() -> bool:
        rows = (await lab.nodes()).values()
        return any(row["phase"] == "configuring" and f"port {PORT}" in str(row) for row in rows)

    await lab.until(waits, "the node waits for the server", PATIENCE_S)
    ((rig.machine, row),) = (await lab.nodes()).items()
    rig.slot = row["slot"]
    figure(f"the node waits for its share after {time.monotonic() - rig.begun:.0f} s")
    assert "IDLE" not in (await lab.slots())[rig.slot].states
    begun = time.monotonic()
    await server.run("systemctl", "start", "nfs-server", timeout_s=180)
    await server.export([str(row["address"])])
    await lab.ready(1, PATIENCE_S)
    figure(f"it is ready {time.monotonic() - begun:.0f} s after the server's start")
    assert "share" in (await lab.features())[rig.slot]


async def test_the_kernel_mounts_what_the_settings_say_over_the_tailnet_alone(rig: Rig) -> None:
    mounts = (await rig.lab.inside(rig.machine, "cat", "/proc/mounts")).splitlines()
    ((device, path, kind, options),) = [line.split()[:4] for line in mounts if " nfs4 " in line]
    assert (device, path, kind) == (f"{rig.server.ip}:/home", "/home", "nfs4")
    assert {"vers=4.2", "hard", "noatime", "nosuid", "nodev", "sec=sys"} <= set(options.split(","))
    assert f"addr={rig.server.ip}" in options
    listening = await rig.server.shell("ss -Hltn | awk '{print $4}' | grep -E ':(2049|111)$'")
    assert listening.split() == [f"{rig.server.ip}:{PORT}"]
    private = rig.lab.cluster.world.hypervisor.address(NAME)
    reach = f"import socket; socket.create_connection(('{private}', {PORT}), 5)"
    refused = await rig.lab.inside(rig.machine, "sh", "-c", f'python3 -c "{reach}" 2>&1 || true')
    assert "ConnectionRefusedError" in refused
    assert await rig.server.exported() == {f"/home {(await rig.row())['address']}"}


async def test_owners_and_modes_are_the_servers(rig: Rig) -> None:
    lab = rig.lab
    script = (
        "id -u; umask 022; echo mine >mine; mkdir group; chmod 2775 group; touch group/file;"
        "ln -s mine link; mv mine moved; stat -c '%u %a' moved group"
    )
    out = await lab.srun(f"--chdir={HOME}", "sh", "-ec", script)
    uid = (await lab.head.run("id", "-u", USER)).text
    assert out.split() == [uid, uid, "644", uid, "2775"]
    told = await rig.server.shell(f"cd {HOME}; stat -c '%U %G %a' . moved group group/file; readlink link")
    assert told.splitlines() == [
        f"{USER} {USER} 700", f"{USER} {USER} 644", f"{USER} {USER} 2775", f"{USER} {USER} 644", "mine",
    ]  # fmt: skip
    for words in (("ls", HOME), ("touch", f"{HOME}/by-root"), ("touch", "/home/by-root")):
        answer = await lab.inside(rig.machine, "sh", "-c", f"{' '.join(words)} 2>&1 || true")
        assert "Permission denied" in answer, words
    other = await lab.inside(rig.machine, "sh", "-c", f"setpriv --reuid=nobody --clear-groups ls {HOME} 2>&1 || true")
    assert "Permission denied" in other


async def test_a_cut_of_15_s_stops_a_job_and_it_goes_on(rig: Rig, figure: Callable[[str], None]) -> None:
    lab, vm = rig.lab, rig.lab.cluster.world.hypervisor
    await distant(lab.cluster.world, [NAME, host_name(lab, rig.machine)], 25)
    ping = await lab.inside(rig.machine, "ping", "-c", "3", "-W", "5", rig.server.ip)
    figure(f"over the tailnet {ping.splitlines()[-1]}")
    assert float(ping.partition(" = ")[2].split("/")[0]) >= 50
    rig.job = await lab.sbatch(WRITES.format(home=HOME), f"--chdir={HOME}", f"--output={HOME}/%j.out")
    await lab.running(rig.job)
    await rig.written(5)
    await vm.set_link(NAME, up=False)
    await asyncio.sleep(CUT_S)
    await vm.set_link(NAME, up=True)
    begun = time.monotonic()
    await rig.written(5)
    figure(f"after a cut of {CUT_S:.0f} s the job writes again {time.monotonic() - begun:.0f} s later")
    assert pauses(await rig.server.lines(), CUT_S * 0.8)
    assert (await lab.job(rig.job))["JobState"] == "RUNNING"
    await rig.unfit("")


async def test_a_server_that_dies_and_boots_again_loses_nothing(rig: Rig, figure: Callable[[str], None]) -> None:
    lab, vm = rig.lab, rig.lab.cluster.world.hypervisor
    boot_id = await rig.server.shell("cat /proc/sys/kernel/random/boot_id")
    await rig.written(3)
    begun = time.monotonic()
    await vm.crash(NAME)
    assert not vm.alive(NAME)
    await rig.unfit("share_lost")
    figure(f"the lost share is reported {time.monotonic() - begun:.0f} s after the server's death")

    async def drained() -> bool:
        return "DRAIN" in (await lab.slots())[rig.slot].states

    await lab.until(drained, "no job starts on the node")
    assert (await lab.job(rig.job))["JobState"] == "RUNNING"
    begun = time.monotonic()
    await vm.power_on(NAME)
    await rig.server.run("true", timeout_s=PATIENCE_S)
    assert await rig.server.shell("cat /proc/sys/kernel/random/boot_id") != boot_id
    figure(f"it lets ssh in {time.monotonic() - begun:.0f} s after its power is back")
    await rig.written(5)
    figure(f"the job writes again {time.monotonic() - begun:.0f} s after its power is back")
    await rig.unfit("")

    async def open_again() -> bool:
        return "DRAIN" not in (await lab.slots())[rig.slot].states

    await lab.until(open_again, "jobs start on the node again")
    await lab.inside(rig.machine, "runuser", "-u", USER, "--", "touch", f"{HOME}/stop")
    await lab.completed(rig.job)
    lines = await rig.server.lines()
    assert len(pauses(lines, CUT_S * 0.8)) >= 2
    last = await lab.inside(rig.machine, "runuser", "-u", USER, "--", "tail", "-n", "1", f"{HOME}/lines")
    assert int(last.split()[0]) == lines[-1][0]
    owners = await rig.server.run("stat", "-c", "%U", f"{HOME}/lines", f"{HOME}/{rig.job}.out")
    assert owners.text.split() == [USER] * 2
    figure(f"all of it took {time.monotonic() - rig.begun:.0f} s")
