"""The recipes for MPI, Ray, submitit and containers, done as their READMEs say, on two nodes with the head's homes."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from deploy.sandbox import images
from tests.e2e.lab import USER, Lab
from tests.e2e.recipes import Person
from tests.e2e.workplace import NODES, accounting, workplace

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def person(booted: Lab) -> AsyncIterator[Person]:
    async with workplace(booted, "recipes of jobs") as someone:
        yield someone


@pytest.fixture
def figures(figure: Callable[[str], None]) -> Callable[[str, float], None]:
    def note(name: str, began: float) -> None:
        figure(f"recipe {name}: {time.monotonic() - began:.1f} s")

    return note


async def test_mpi(person: Person, figures: Callable[[str, float], None]) -> None:
    began = time.monotonic()
    said = (await person.follow("mpi")).output("cat slurm")
    figures("mpi", began)
    pi = re.search(r"^pi = (\S+) by (\d+) tasks", said, re.M)
    assert pi and pi.groups() == ("3.141592653590", "4"), said
    ranks = re.findall(r"^rank (\d) of 4 on (\S+): .* sum \[0.0, 6.0, 12.0, 18.0\]$", said, re.M)
    assert sorted(rank for rank, _ in ranks) == ["0", "1", "2", "3"], said
    assert sorted(Counter(node for _, node in ranks).values()) == [2, 2], said
    await person.type("cd")


async def test_a_world_of_one_is_noticed(person: Person) -> None:
    """What srun does without --mpi=pmix."""
    for program in ("./pi", "python3 ring.py"):
        ran = await person.type(f"cd ~/mpi && srun --mpi=none -N2 {program}", check=False)
        assert "--mpi=pmix" in ran.output
    await person.type("cd")


async def test_ray(person: Person, figures: Callable[[str, float], None]) -> None:
    began = time.monotonic()
    said = (await person.follow("ray")).output("cat slurm")
    figures("ray", began)
    assert re.search(rf"^{NODES} nodes, {NODES} CPUs, {NODES} GPUs$", said, re.M), said
    trials = re.findall(r"^rate \S+ +loss \S+ on (\S+)$", said, re.M)
    assert sorted(Counter(trials).values()) == [3, 3], said
    assert "best rate: " in said
    await person.type("cd")


async def hurry(lab: Lab) -> None:
    """Let jobs that are queued again start at once: Slurm lets them wait for two minutes."""
    while True:
        waiting = (await lab.head.run("squeue", "-h", "-t", "PD", "-o", "%i %r", check=False)).text
        for job in re.findall(r"^(\d+) BeginTime$", waiting, re.M):
            await lab.head.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
        await asyncio.sleep(0.5)


async def test_submitit(person: Person, figures: Callable[[str, float], None]) -> None:
    async with accounting(person.lab):
        began = time.monotonic()
        hurried = asyncio.create_task(hurry(person.lab))
        try:
            walk = await person.follow("submitit")
        finally:
            hurried.cancel()
        figures("submitit", began)
    said = walk.output("~/env-submitit/bin/python sweep.py --requeue")
    assert re.search(r"^one call: job \d+, 12 \* 12 = 144$", said, re.M), said
    assert re.search(r"^an array: jobs \d+_0 to \d+_4: \[0, 1, 4, 9, 16\]$", said, re.M), said
    assert re.search(r"^training: 12 steps in 2 starts of job \d+$", said, re.M), said
    tasks = re.findall(r"^task (\d) of 4 on (\S+)$", said, re.M)
    assert sorted(task for task, _ in tasks) == ["0", "1", "2", "3"], said
    assert len({node for _, node in tasks}) == NODES, said
    assert re.search(r"^\d+ +training +COMPLETED +1 *$", walk.output("sacct"), re.M), walk.output("sacct")
    await person.type("cd")


async def test_profiling(person: Person, figures: Callable[[str, float], None]) -> None:
    began = time.monotonic()
    said = (await person.follow("profiling")).output("cat slurm")
    figures("profiling", began)
    assert len(re.findall(r"^profile-[01]: where the time went$", said, re.M)) == 2, said
    assert "(train)" in said
    assert len(re.findall(r"^\d{4}/\d\d/\d\d \S+, 0, 0 %, 0 MiB$", said, re.M)) >= NODES, said
    await person.type("cd")


async def test_what_was_horovod_by_ddp(person: Person, figures: Callable[[str, float], None]) -> None:
    began = time.monotonic()
    said = (await person.follow("horovod")).output("cat slurm")
    figures("horovod, by DDP", began)
    ranks = re.findall(r"^rank (\d) of 2: loss (\S+) -> (\S+), sum of all weights (\S+)$", said, re.M)
    assert sorted(rank for rank, *_ in ranks) == ["0", "1"], said
    assert len({one[1:] for one in ranks}) == 1, f"the ranks differ: {said}"
    await person.type("cd")


async def test_containers(person: Person, figures: Callable[[str, float], None]) -> None:
    archive = await images.ensure_oci_image("trixie")
    lab = person.lab
    shutil.copyfile(archive, lab.cluster.world.share / "home" / USER / "python.tar")
    await person.type("export IMAGE=oci-archive:$HOME/python.tar")
    await person.type("chmod 700 ~")
    began = time.monotonic()
    said = (await person.follow("container")).output("cat slurm")
    figures("container", began)
    seen = re.findall(r"^rank (\d) of 2 on (\S+): (.*), Python \S+, GPUs (.*)$", said, re.M)
    assert sorted(rank for rank, *_ in seen) == ["0", "1"], said
    assert len({node for _, node, *_ in seen}) == NODES, said
    assert {gpus for *_, gpus in seen} == {"['nvidia0']"}, said

    # Another job finds the bundle there; the container is not the node; the exit code is the program's.
    inside = "srun --container=/tmp/$USER-python"
    ran = await person.type(f"{inside} sh -c 'id -un; echo ~; command -v sinfo || echo none; exit 5'; echo exit $?")
    assert ran.output.split()[:3] == [USER, f"/home/{USER}", "none"]
    assert "exit 5" in ran.output
    ran = await person.type(f"{inside} env")
    assert "SLURM_CONF=" not in ran.output
    assert "GLOO_SOCKET_IFNAME=tailscale0" in ran.output
    job = (await person.type(f"cd; sbatch --parsable -o gone.out --wrap '{inside} sleep 1000'")).output.strip()
    await lab.running(job)
    await person.type("rm -rf python.tar container/images")
    await person.type(f"scancel {job}")

    async def over() -> bool:
        return (await lab.job(job))["JobState"] == "CANCELLED"

    await lab.until(over, "the job in a container is cancelled")
