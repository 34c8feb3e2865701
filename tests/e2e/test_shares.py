"""Users' homes on the nodes: mounted from the head before slurmd, kept through faults, and gone with the settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from meshd.codes import CheckName
from tests.e2e.lab import USER, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

HOME = f"/home/{USER}"
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
        lines = (await self.lab.head.shell("cat /var/lib/nfs/etab")).splitlines()
        return {line.partition("(")[0].replace("\t", " ") for line in lines}

    async def mounted(self, machine: str) -> list[str]:
        """What the machine has mounted by NFS, in order."""
        text = await self.lab.inside(machine, "cat", "/proc/mounts")
        return sorted(line.split()[1] for line in text.splitlines() if "nfs4" in line.split()[2])

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
        rows = (await self.lab.ask("doctor"))["checks"]
        (row,) = [row for row in rows if row["name"] == CheckName.SHARES]
        return row


@pytest_asyncio.fixture(loop_scope="session")
async def shares(lab: Lab) -> AsyncIterator[Shares]:
    made = Shares(lab)
    await made.settings()
    yield made
    await made.server("start")


async def test_init_share_sets_up_the_server_once_and_takes_it_back(shares: Shares) -> None:
    lab = shares.lab
    for _ in range(2):
        assert (await lab.meshctl("init", "--share", "--yes")).returncode == 0
    again = await lab.ask("init", "--share", "--dry-run")
    assert again["changes"] == []
    listening = await lab.head.shell("ss -Hltn | awk '{print $4}' | grep -E ':(2049|111)$'")
    assert listening.split() == [f"{lab.head.tailnet_ip}:2049"]
    assert (await shares.doctor())["status"] == "ok"
    assert "address already in use" not in await lab.head.journal("nfs-server")


async def test_a_jobs_output_is_in_the_home_on_the_head(shares: Shares, figure: Callable[[str], None]) -> None:
    lab = shares.lab
    await lab.head.run("chmod", "0700", HOME)
    await lab.have(1)
    ((slot, row),) = (await lab.by_slot()).items()
    assert await shares.mounted(row["machine"]) == ["/home"]
    assert await shares.exported() == {f"/home {row['address']}"}
    assert "share" in (await lab.features())[slot]
    script = "umask 077; echo $SLURM_JOB_ID >mine; mkdir -p made; echo done"
    job = await lab.sbatch(script, f"--chdir={HOME}", f"--output={HOME}/%j.out")
    await lab.completed(job)
    kept = await lab.head.run("stat", "-c", "%U %a", f"{HOME}/mine", f"{HOME}/{job}.out")
    assert kept.text.split() == [USER, "600", USER, "644"]
    assert (await lab.head.run("cat", f"{HOME}/{job}.out", f"{HOME}/mine")).text.split() == ["done", job]
    root = await lab.inside(row["machine"], "sh", "-c", f"ls {HOME} 2>&1 || true")
    assert "Permission denied" in root, "root of a node is nobody on the head"
