"""From login to a training run on two nodes, as the READMEs of recipes/ say: by an account that is a minute old."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
import pytest_asyncio

from deploy.sandbox.clouds.host import BootDefaults
from tests import documents
from tests.e2e.lab import Lab
from tests.e2e.mlflow import Server, mlflow
from tests.e2e.pods import PROGRAMS
from tests.e2e.recipes import Person, instead

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

STUDENT = "carla"
SHARES = '[share.home]\npath = "/home"\n'
JOB_S = 400.0
"""PyTorch computes here, and on a busy host that takes many times what it takes on a quiet one."""
LAST_STEP = 128
"""Of pytorch-ddp as it stands: 4 epochs of 32 steps."""


@dataclass(frozen=True, slots=True)
class Campus:
    """Two nodes with PyTorch, shared homes, MLflow, and somebody who wants to train."""

    lab: Lab
    server: Server
    student: Person

    async def file(self, path: str) -> str:
        """A file in the student's home, as the head has it; "" where there is none."""
        return (await self.lab.head.run("cat", f"/home/{STUDENT}/{path}", check=False)).text


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def campus(booted: Lab) -> AsyncIterator[Campus]:
    lab = booted
    await lab.begin("campus")
    async with lab.also(SHARES), mlflow(lab) as server:
        await lab.head.run("meshctl", "init", "--share", "--yes")
        await lab.head.run("useradd", "--create-home", "--shell", "/bin/bash", STUDENT)
        lab.boot(BootDefaults(image="trixie-torch"))
        await lab.have(2)
        yield Campus(lab, server, Person(lab, STUDENT))
        await lab.head.run("scancel", "-u", STUDENT, check=False)


async def test_the_walk_from_login_to_a_training_run_that_loses_a_node(
    campus: Campus, figure: Callable[[str], None]
) -> None:
    lab, began = campus.lab, time.monotonic()

    async def lose_a_node(job: str) -> None:
        """Once there is a checkpoint, the cloud takes the machine of the last rank."""

        async def saved() -> bool:
            return bool(await campus.file("ddp/checkpoints/newest.pt"))

        await lab.until(saved, "a checkpoint is written")
        slots = await lab.by_slot()
        lost = slots[max(slots)]["machine"]
        lab.die(lost)
        figure(f"another machine after {await lab.replaced(lost, 2):.1f} s")
        await lab.start_again(job)

    walk = await campus.student.follow(meanwhile=lose_a_node, timeout_s=JOB_S)
    (job,) = walk.jobs
    assert int((await lab.job(job))["Restarts"]) >= 1
    output = walk.output("cat slurm-")
    assert {(rank, size) for rank, size in re.findall(r"^rank (\d) of (\d) on h100-\d: cpu$", output, re.M)} == {
        ("0", "2"), ("1", "2"),
    }  # fmt: skip
    went_on = [int(step) for step in re.findall(r"^goes on from step (\d+)$", output, re.M)]
    assert went_on and 20 <= went_on[0] < LAST_STEP
    accuracy = re.search(rf"^step {LAST_STEP}: accuracy (\d\.\d+)$", output, re.M)
    assert accuracy and float(accuracy[1]) > 0.9
    assert walk.output("srun sh -c") == campus.server.uri

    (run,) = await campus.server.runs("pytorch-ddp")
    assert (run["info"]["status"], run["info"]["user_id"]) == ("FINISHED", STUDENT)
    assert {one["key"]: one["value"] for one in run["data"]["params"]}["gpus"] == "2"
    path = f"/api/2.0/mlflow/metrics/get-history?run_id={run['info']['run_id']}&metric_key=loss"
    steps = [int(one["step"]) for one in json.loads((await campus.server.call(path))[1])["metrics"]]
    assert sorted(set(steps)) == list(range(20, LAST_STEP, 20)), "from before and after the loss of the node"
    figure(f"from login to the end of the training: {time.monotonic() - began:.1f} s")


async def test_more_is_installed_into_the_environment(campus: Campus) -> None:
    """Another package than PyTorch: what stands for PyPI here does not have that."""
    (block,) = documents.share(__file__, "recipes/README.md")
    await campus.student.block(block, instead=instead({"install torch": "install submitit"}))
    await campus.student.type("~/env/bin/python -c 'import submitit'")


@pytest.mark.nightly
async def test_a_training_run_on_a_pool_in_which_nothing_is_rented(
    campus: Campus, figure: Callable[[str], None]
) -> None:
    """sbatch rents its two machines, and no other."""
    lab = campus.lab
    await lab.head.run("rm", "-rf", f"/home/{STUDENT}/ddp")
    await lab.have(0)
    await lab.nothing_left()
    ever = {cloud: len(lab.ledger(cloud)) for cloud in lab.cluster.clouds.clouds}
    began, event = time.monotonic(), await lab.last_event()

    async def runs(job: str) -> None:
        await lab.running(job)
        figure(f"from sbatch to RUNNING: {time.monotonic() - began:.1f} s")

    walk = await campus.student.follow("pytorch-ddp", meanwhile=runs, timeout_s=JOB_S)
    figure(f"from sbatch to COMPLETED: {time.monotonic() - began:.1f} s")
    (job,) = walk.jobs
    assert (await lab.job(job))["Restarts"] == "0"
    accuracy = re.search(rf"^step {LAST_STEP}: accuracy (\d\.\d+)$", walk.output("cat slurm-"), re.M)
    assert accuracy and float(accuracy[1]) > 0.9
    assert sum(len(lab.ledger(cloud)) - count for cloud, count in ever.items()) == 2, await lab.events(event)


async def test_fsdp_by_srun_goes_on_by_torchrun(campus: Campus, figure: Callable[[str], None]) -> None:
    # Debian's torchrun needs libuv, with which Debian's PyTorch is not built.
    await campus.lab.head.write(f"/home/{STUDENT}/env/bin/torchrun", (PROGRAMS / "torchrun.py").read_text(), "0755")
    began = time.monotonic()
    walk = await campus.student.follow("pytorch-fsdp", timeout_s=JOB_S)
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss (\d+\.\d+),", walk.output("cat slurm-"), re.M)]
    assert len(losses) == 3 and losses[-1] < losses[0] / 2
    assert await campus.file("fsdp/checkpoints/newest") == "64"

    ran = await campus.student.submit("sbatch torchrun.sh --epochs 3", timeout_s=JOB_S)
    output = await campus.file(f"fsdp/slurm-{ran.jobs[0]}.out")
    assert len(re.findall(r"^rank \d of 2 on h100-\d: cpu$", output, re.M)) == 2
    assert "goes on from step 64\n" in output
    assert await campus.file("fsdp/checkpoints/newest") == "96"
    assert len(await campus.server.runs("pytorch-fsdp")) == 1, "the second job went on with the run of the first"
    figure(f"{time.monotonic() - began:.1f} s")


async def test_the_recipe_allreduce(campus: Campus, figure: Callable[[str], None]) -> None:
    walk = await campus.student.follow("allreduce", timeout_s=JOB_S)
    output = walk.output("cat slurm-")
    assert len(re.findall(r"^rank \d on h100-\d: cpu, PyTorch 2\.", output, re.M)) == 2
    rate = re.search(r"^h100-\d and h100-\d: (\d+\.\d+) GB/s$", output, re.M)
    assert rate and float(rate[1]) > 0
    figure(f"{rate[1]} GB/s")
