"""slurmctld keeps running on the last good files, whatever happens to them; people are told what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from tests.e2e.lab import Lab
from tests.e2e.test_jobs import WAIT_FOR_WORD

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

FILES = "/var/lib/meshd/slurm"


async def no_problems(lab: Lab) -> None:
    """Wait until meshd has seen that its problems are over."""

    async def none() -> bool:
        return not await lab.problems()

    await lab.until(none, "no problem is told any more")


async def test_garbage_in_nodes_conf(lab: Lab, figure: Callable[[str], None]) -> None:
    await lab.scale(1)
    job = await lab.sbatch(WAIT_FOR_WORD)
    busy = (await lab.by_slot())[await lab.running(job)]["machine"]
    await lab.head.shell(f"printf 'NodeName=h100-[1-\\n<<<<<<< HEAD\\n' >>{FILES}/nodes.conf")

    await lab.scale(2)
    told = await lab.problems()
    figure(f"told: {told}")
    assert "edited by hand" in told
    assert "remove *.edited" in told
    assert "<<<<<<<" in await lab.head.shell(f"cat {FILES}/nodes.conf.edited")
    assert "<<<<<<<" not in await lab.head.shell(f"cat {FILES}/nodes.conf")
    assert await lab.srun("-N1", "printenv", "SLURMD_NODENAME") in {"h100-1", "h100-2"}

    assert (await lab.job(job))["JobState"] == "RUNNING"
    await lab.inside(busy, "touch", f"/tmp/end-{job}")
    assert (await lab.completed(job))["Restarts"] == "0"
    await lab.head.shell(f"rm {FILES}/*.edited")
    await no_problems(lab)


@pytest_asyncio.fixture(loop_scope="session")
async def full_disk(lab: Lab) -> AsyncIterator[Lab]:
    """The directory of Slurm's files lies on a disk that is full."""
    await lab.scale(1)
    await lab.head.shell(
        f"cp -a {FILES} /root/slurm-files; mount -t tmpfs -o size=64k,mode=0755,uid=slurm,gid=slurm none {FILES};"
        f"cp -a /root/slurm-files/. {FILES}/; cat /dev/zero >{FILES}/ballast 2>/dev/null || true"
    )
    yield lab
    await lab.head.shell(f"cp -a {FILES}/. /root/slurm-files/; umount -l {FILES}; rm -f /root/slurm-files/ballast;"
                         f"cp -a /root/slurm-files/. {FILES}/; rm -rf /root/slurm-files")  # fmt: skip


async def test_a_full_disk(full_disk: Lab, figure: Callable[[str], None]) -> None:
    lab = full_disk
    await lab.want(2)

    async def told() -> str | None:
        problems = await lab.problems()
        return problems if "No space left" in problems else None

    words = await lab.until(told, "`meshctl status` tells of the full disk")
    figure(f"told: {words}")
    assert "cannot be written" in words
    assert "last good" in words
    assert "make room" in words
    assert await lab.srun("-N1", "printenv", "SLURMD_NODENAME") == "h100-1"
    assert await lab.joined_slots() == {"h100-1"}

    await lab.head.shell(f"rm {FILES}/ballast")
    await lab.ready(2)
    await no_problems(lab)
    said = await lab.srun("-N2", "printenv", "SLURMD_NODENAME")
    assert set(said.split()) == {"h100-1", "h100-2"}
