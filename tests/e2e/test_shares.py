"""Users' homes on the nodes: mounted from the head before slurmd, kept through faults, and gone with the settings."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from meshd.codes import CheckName, ProblemCode
from tests.e2e.lab import PATIENCE_S, USER, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

HOME = f"/home/{USER}"
DATA = '\n[share.data]\npath = "/srv/data"\n'
SHARES = '\n[share.home]\npath = "/home"\n'
GRACE_S = 1.0


class Shares:
    """The lab with a head that serves its shares."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    async def settings(self, shares: str = SHARES) -> None:
        assert await self.lab.write_settings(self.lab.settings_with(unfit_grace_s=GRACE_S) + shares) == 0

    async def server(self, verb: str) -> None:
        await self.lab.head.run("systemctl", verb, "nfs-server")

    async def exported(self) -> set[str]:
        """`PATH ADDRESS` of each export in force."""
        lines = (await self.lab.head.shell("cat /var/lib/nfs/etab 2>/dev/null || true")).splitlines()
        return {line.partition("(")[0].replace("\t", " ") for line in lines}

    async def mounted(self, machine: str) -> list[str]:
        """What the machine has mounted by NFS, in order."""
        text = await self.lab.inside(machine, "cat", "/proc/mounts")
        return sorted(line.split()[1] for line in text.splitlines() if "nfs4" in line.split()[2])

    async def one_node(self) -> tuple[str, Any]:
        """A node that takes jobs with the home mounted, and no other: its slot, and its row of `meshctl nodes`.

        A node of the scenario before gets its shares again meanwhile, and is unfit until it has them.
        """
        await self.lab.have(1)
        ((slot, row),) = (await self.lab.by_slot()).items()

        async def there() -> bool:
            well = (await self.lab.slots())[slot].states == {"IDLE"} and "share" in (await self.lab.features())[slot]
            unfit = (await self.lab.nodes())[row["machine"]]["unfit"]
            return well and not unfit and await self.mounted(row["machine"]) == ["/home"]

        await self.lab.until(there, f"{slot} has its share and takes jobs")
        return slot, row

    async def unfit(self, machine: str, why: str) -> Any:
        async def look() -> Any:
            row = (await self.lab.nodes())[machine]
            return row if row["unfit"] == why else None

        return await self.lab.until(look, f"{machine} is {why or 'fit'}")

    async def drained(self, slot: str, reason: str) -> None:
        async def look() -> bool:
            found = (await self.lab.slots())[slot]
            return ("DRAIN" in found.states) == bool(reason) and reason in found.reason

        await self.lab.until(look, f"{slot} is drained: {reason or 'no'}")

    async def doctor(self) -> Any:
        return (await self.lab.checks())[CheckName.SHARES]


@pytest_asyncio.fixture(loop_scope="session")
async def shares(lab: Lab) -> AsyncIterator[Shares]:
    made = Shares(lab)
    await made.settings()
    yield made
    await made.server("start")


async def test_init_share_sets_up_the_server_once_and_takes_it_back(shares: Shares) -> None:
    lab = shares.lab

    async def nothing_exported() -> bool:
        return not await shares.exported()

    await lab.until(nothing_exported, "the nodes of the test before are exported nothing")
    for _ in range(2):
        done = await lab.meshctl("init", "--share", "--yes", timeout_s=PATIENCE_S)
        assert done.returncode == 0, done
    again = await lab.ask("init", "--share", "--dry-run")
    assert again["changes"] == []
    listening = await lab.head.shell("ss -Hltn | awk '{print $4}' | grep -E ':(2049|111)$'")
    assert listening.split() == [f"{lab.head.tailnet_ip}:2049"]

    async def well() -> bool:
        return (await shares.doctor())["status"] == "ok"

    await lab.until(well, "doctor finds the shares well")
    assert "address already in use" not in await lab.head.journal("nfs-server")


async def test_a_jobs_output_is_in_the_home_on_the_head(shares: Shares, figure: Callable[[str], None]) -> None:
    lab = shares.lab
    await lab.head.run("chmod", "0700", HOME)
    slot, row = await shares.one_node()
    assert await shares.mounted(row["machine"]) == ["/home"]
    assert await shares.exported() == {f"/home {row['address']}"}
    assert "share" in (await lab.features())[slot]
    script = "umask 077; echo $SLURM_JOB_ID >mine; mkdir -p made; echo done"
    job = await lab.sbatch(script, f"--chdir={HOME}", f"--output={HOME}/%j.out", f"--nodelist={slot}")
    await lab.completed(job)
    kept = await lab.head.run("stat", "-c", "%U %a", f"{HOME}/mine", f"{HOME}/{job}.out")
    assert kept.text.split() == [USER, "600", USER, "644"]
    assert (await lab.head.run("cat", f"{HOME}/{job}.out", f"{HOME}/mine")).text.split() == ["done", job]
    root = await lab.inside(row["machine"], "sh", "-c", f"ls {HOME} 2>&1 || true")
    assert "Permission denied" in root, "root of a node is nobody on the head"


@pytest.mark.any_machines
async def test_a_dead_server_drains_nodes_and_ends_no_job_and_a_new_node_waits_for_it(
    shares: Shares, figure: Callable[[str], None]
) -> None:
    lab = shares.lab
    slot, row = await shares.one_node()
    machine = row["machine"]
    beats = f"{HOME}/beats"
    script = f"until [ -e {HOME}/enough ]; do date +%s >>{beats}; sleep 0.2; done; echo done"
    job = await lab.sbatch(script, f"--chdir={HOME}", f"--output={HOME}/%j.out", f"--nodelist={slot}")
    await lab.running(job)

    before = await lab.last_event()
    await shares.server("stop")
    began = time.monotonic()
    try:
        await lab.want(2)
        await shares.drained(slot, "/home")
        figure(f"a node whose share died was drained after {time.monotonic() - began:.0f} s")
        assert (await lab.job(job))["JobState"] == "RUNNING"
        assert (await shares.doctor())["code"] == ProblemCode.SHARE_SERVER_DOWN

        async def says_why() -> bool:
            (new,) = [one for name, one in (await lab.nodes()).items() if name != machine] or [None]
            waits = new["settings"] or [] if new is not None and new["phase"] == "configuring" else []
            return any(one["name"] == "shares" and "2049" in one["text"] for one in waits)

        await lab.until(says_why, "the new machine says what it waits for")
        assert set(await lab.nodes()) > {machine}, "the old one is not replaced"
        drains = [one for one in await lab.events(before) if one["kind"] == "drained" and one["machine"] == machine]
        assert len(drains) == 1, "it is drained once"
    finally:
        await shares.server("start")
    began = time.monotonic()
    await shares.drained(slot, "")
    figure(f"the drain was lifted {time.monotonic() - began:.0f} s after the server was back")
    await shares.unfit(machine, "")
    await lab.ready(2)
    await lab.head.run("runuser", "-u", USER, "--", "touch", f"{HOME}/enough")
    await lab.completed(job)
    assert (await lab.head.run("cat", f"{HOME}/{job}.out")).text == "done"


@pytest.mark.any_machines
async def test_a_rebooted_node_has_its_shares_before_it_takes_jobs(
    shares: Shares, figure: Callable[[str], None]
) -> None:
    lab = shares.lab
    slot, row = await shares.one_node()
    machine = row["machine"]
    took_s = await lab.reboot(machine)
    assert await shares.mounted(machine) == ["/home"]
    figure(f"a rebooted node was back with its share after {took_s:.1f} s")
    job = await lab.sbatch("echo again", f"--chdir={HOME}", f"--output={HOME}/%j.out", f"--nodelist={slot}")
    await lab.completed(job)
    assert (await lab.head.run("cat", f"{HOME}/{job}.out")).text == "again"


@pytest.mark.any_machines
async def test_shares_come_and_go_with_the_settings_and_one_that_is_used_stays(shares: Shares) -> None:
    lab = shares.lab
    slot, row = await shares.one_node()
    machine = row["machine"]
    await shares.settings(SHARES + DATA)

    async def mounted(*paths: str) -> bool:
        return await shares.mounted(machine) == list(paths)

    await lab.until(lambda: mounted("/home", "/srv/data"), "both are mounted")
    user = await lab.inside(machine, "sh", "-c", "cd /srv/data; sleep 600 >/dev/null 2>&1 & echo $!")
    await shares.settings()

    async def told() -> bool:
        return f"sleep ({user})" in await lab.problems()

    await lab.until(told, "what still uses it is told")
    assert await mounted("/home", "/srv/data")
    await lab.inside(machine, "kill", user)
    await lab.until(lambda: mounted("/home"), "it is unmounted")
    assert await shares.exported() == {f"/home {row['address']}"}
    await shares.settings("")
    await lab.until(mounted, "nothing is mounted")

    async def over() -> bool:
        return "share" not in (await lab.features())[slot] and not await shares.exported()

    await lab.until(over, "the node has no feature share, and no export")


@pytest.mark.any_machines
async def test_what_init_did_is_taken_back(shares: Shares) -> None:
    lab = shares.lab
    await lab.have(1)
    await lab.have(0)
    assert await shares.exported() == set()
    words = ("/opt/meshd/venv/bin/python", "-I", "-m")
    await lab.head.run(*words, "meshd.shares.headexports", "--remove")
    await lab.head.run(*words, "meshd.shares.setup_io", "--remove")
    await lab.head.shell("! ls /etc/nfs.conf.d/meshd.conf /etc/exports.d/meshd.exports")
    states = await lab.head.run("systemctl", "is-enabled", "rpcbind.socket", "rpc-statd", "nfs-server", check=False)
    assert states.text.split() == ["enabled", "static", "disabled"]
    assert not (await lab.head.shell("ss -Hltn | grep -E ':2049 ' || true"))
