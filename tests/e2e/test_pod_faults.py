"""What ends on a pod begins again, as under systemd; what runs meanwhile goes on, or fails at once, and never hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import pytest_asyncio

from deploy.sandbox import proc
from tests import documents
from tests.e2e.lab import WAIT_FOR_WORD
from tests.e2e.pods import LOST_S, POD_CLOUD, Fleet
from tests.e2e.recipes import Person

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

STREAM = "while ! [ -e {word} ]; do echo $SLURMD_NODENAME; sleep 0.1; done; echo end; exit 3"
"""A step that writes until its node has a file."""

BROKEN_S = 40.0
"""A step whose connections broke ends in less: its tasks end by themselves, and slurmstepd connects to srun again."""

BATCH_START_TIME = "00:00:20"
"""When a node registers without a job, slurmctld queues that again; but not one that began less than BatchStartTimeout
and 10 s before, which could be on its way there."""

REPLACED_S = 240.0
"""A pod that died is given up when its agent was silent for `heartbeat_lost_s`."""

ONCE = "[ ${SLURM_RESTART_COUNT:-0} -gt 0 ] || sleep 600; echo done"
"""A job that only ends after it was queued again."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def long_job(fleet: Fleet) -> tuple[str, str]:
    """A job that runs on a pod through all; its slot and id."""
    slot = fleet.pods[0]
    job = await fleet.lab.sbatch(ONCE, "-w", slot, "--gpus=0", "--requeue")
    await fleet.lab.running(job)
    return slot, job


async def untouched(fleet: Fleet, long_job: tuple[str, str]) -> None:
    """The long job is at its first run."""
    seen = await fleet.lab.job(long_job[1])
    assert (seen["JobState"], seen["Restarts"]) == ("RUNNING", "0")


async def killed(fleet: Fleet, name: str, slots: tuple[str, ...]) -> float:
    """Kill a daemon on some nodes, and wait until another one runs; the seconds that it took."""
    before = {slot: await fleet.pid(slot, name) for slot in slots}
    assert all(before.values()), before
    began = time.monotonic()
    await asyncio.gather(*(fleet.sh(slot, f"kill -KILL {before[slot]}") for slot in slots))

    async def again() -> bool:
        return all([await fleet.pid(slot, name) not in {before[slot], ""} for slot in slots])

    await fleet.lab.until(again, f"{name} runs again")
    return time.monotonic() - began


async def well(fleet: Fleet, since: float | None = None) -> None:
    """Wait until Slurm has all nodes and nothing is wrong; and, with a moment, until all agents have called since."""
    lab = fleet.lab

    async def look() -> bool:
        asked, rows, slots = time.monotonic(), await lab.by_slot(), await lab.slots()
        beats = [row["heartbeat_age_s"] for row in rows.values()]
        if since is not None and any(beat is None or beat > asked - since for beat in beats):
            return False
        usable = all(slots[slot].states <= {"IDLE", "MIXED", "ALLOCATED"} for slot in fleet.slots)
        return usable and not await lab.problems()

    await lab.until(look, "all is well")
    assert {slot: row["machine"] for slot, row in (await lab.by_slot()).items()} == fleet.machines


async def ends(fleet: Fleet, step: asyncio.Task[proc.Result], word: str) -> proc.Result:
    """Let a step of `STREAM` end; it may not hang, whatever became of its connections."""
    await fleet.on_all(f"touch {word}")
    async with asyncio.timeout(BROKEN_S):
        return await step


@pytest.mark.parametrize("name", ["slurmd", "munged", "meshd-node"])
async def test_a_daemon_is_killed(
    fleet: Fleet, long_job: tuple[str, str], name: str, figure: Callable[[str], None]
) -> None:
    """Neither the jobs nor a step's output notices."""
    lab, word = fleet.lab, f"/tmp/{name}-end"
    step = asyncio.create_task(lab.step("-w", fleet.all_nodes, "sh", "-c", STREAM.format(word=word)))
    await fleet.run_everywhere("slurmstepd")
    began = time.monotonic()
    figure(f"{name} killed on three nodes: runs again after {await killed(fleet, name, fleet.slots):.1f} s")
    await well(fleet, began if name == "meshd-node" else None)
    result = await ends(fleet, step, word)
    assert (result.returncode, result.text.count("end")) == (3, 3)
    await untouched(fleet, long_job)
    assert await lab.srun("-w", fleet.all_nodes, "cat", stdin=b"x") == "xxx"


async def test_slurmd_is_restarted_by_hand(fleet: Fleet, long_job: tuple[str, str]) -> None:
    """As the page says. The job there does not notice."""
    (block,) = documents.share(__file__, "docs/containers.md")
    slot = long_job[0]
    before = await fleet.pid(slot, "slurmd")

    async def machine() -> str:
        return fleet.machines[slot]

    shown, _ = await Person(fleet.lab, "root").block(block, node=machine)
    assert shown.output.startswith(f"up (pid {before} "), shown.output

    async def again() -> bool:
        return await fleet.pid(slot, "slurmd") not in {before, ""}

    await fleet.lab.until(again, "another slurmd runs")
    await well(fleet)
    await untouched(fleet, long_job)


@pytest.mark.parametrize("name", ["meshnetd", "tailscaled"])
async def test_the_connections_break(
    fleet: Fleet, long_job: tuple[str, str], name: str, figure: Callable[[str], None]
) -> None:
    """With meshnetd all of a pod's connections to the tailnet end, with tailscaled also those from there."""
    lab, word, other = fleet.lab, f"/tmp/{name}-end", fleet.pods[1]
    job = await lab.sbatch(WAIT_FOR_WORD, "-w", other)
    await lab.running(job)
    step = asyncio.create_task(lab.step("-w", fleet.all_nodes, "sh", "-c", STREAM.format(word=word)))
    await fleet.run_everywhere("slurmstepd")
    began = time.monotonic()
    took = await killed(fleet, name, fleet.pods)
    # An agent reaches the head through tailscaled alone: its next call comes when the head lets the last one go.
    await well(fleet, began if name == "tailscaled" else None)
    figure(f"{name} killed on both pods: runs after {took:.1f} s, all is well after {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    result = await ends(fleet, step, word)
    figure(f"the step over all nodes ended {time.monotonic() - began:.1f} s later, with {result.returncode}")
    await fleet.end(other, job)
    await untouched(fleet, long_job)
    assert await lab.srun("-w", fleet.all_nodes, "cat", stdin=b"x") == "xxx"


async def test_a_container_is_started_again(
    fleet: Fleet, long_job: tuple[str, str], figure: Callable[[str], None]
) -> None:
    """With its files: it comes back as the same node, and what ran on it is queued again."""
    lab, (slot, job) = fleet.lab, long_job
    machine, address = fleet.machines[slot], (await lab.by_slot())[slot]["address"]

    async def old_enough() -> bool:
        return (await lab.job(job))["RunTime"] > BATCH_START_TIME

    await lab.until(old_enough, "slurmctld would miss the job")
    before = await fleet.sh(slot, "cut -d' ' -f22 /proc/1/stat")
    (pod,) = (one for one in lab.alive(POD_CLOUD) if one.token == machine)
    began = time.monotonic()
    lab.cluster.clouds.clouds[POD_CLOUD].ledger.restart(pod.id)

    async def again() -> bool:
        try:
            return await fleet.sh(slot, "cut -d' ' -f22 /proc/1/stat", check=False) not in {before, ""}
        except RuntimeError:  # between its end and its start nothing can be run in it
            return False

    await lab.until(again, "the container runs again")
    await well(fleet)
    figure(f"a container that was started again is a node after {time.monotonic() - began:.1f} s")
    assert (await lab.by_slot())[slot]["address"] == address
    await lab.start_again(job)
    assert (await lab.completed(job))["Restarts"] == "1"
    assert await lab.srun("-w", fleet.all_nodes, "cat", stdin=b"x") == "xxx"


async def test_a_pod_dies_with_a_job(fleet: Fleet, figure: Callable[[str], None]) -> None:
    """The last test: another pod is in the fleet after it."""
    lab = fleet.lab
    job = await lab.sbatch(ONCE, "--constraint=pod", "--requeue")  # what comes in its place has another slot
    machine = fleet.machines[await lab.running(job)]
    await lab.head.shell(
        f"sed -i 's/^SlurmdTimeout=.*/SlurmdTimeout={LOST_S}/' /etc/slurm/slurm.conf; scontrol reconfigure"
    )
    try:
        lab.die(machine, POD_CLOUD)
        took_s = await lab.replaced(machine, 3, timeout_s=REPLACED_S)
        figure(f"a pod that died is replaced in {took_s:.1f} s")
    finally:
        await lab.head.shell(
            "sed -i 's/^SlurmdTimeout=.*/SlurmdTimeout=300/' /etc/slurm/slurm.conf; scontrol reconfigure"
        )
    rows = await lab.by_slot()
    assert sorted(row["provider"] for row in rows.values()).count(POD_CLOUD) == 2
    await lab.start_again(job)
    assert (await lab.completed(job))["Restarts"] == "1"
