"""The steps of nodes that Slurm's power saving drives: CLOUD nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshd.model import plan as p
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import SlurmJob
from tests.unit.daemon.small import Small
from tests.unit.worlds import NOW, machine, node

LEAVING = machine(Phase.DRAINING)
SLOT = LEAVING.slot


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    world = Small(tmp_path)
    yield world
    world.journal.close()


def give(small: Small, m: Machine, *states: str, job: str = "", address: str = "") -> Machine:
    small.journal.put(m, "phase", "given", NOW)
    small.slurm.set(node(m, "CLOUD", *states, node_addr=address or m.tailnet_ip))
    if job:
        jobs = (SlurmJob("7", "u", "h100", job, (m.slot,)),)
        small.slurm.seen = replace(small.slurm.seen, jobs=jobs)
    return m


async def do(small: Small, step: p.Step) -> None:
    small.executor.begin(step)
    await small.settle()


async def test_slurm_knows_the_address_before_slurmd_starts_and_slurmd_tells_of_a_new_boot(small: Small) -> None:
    m = give(small, machine(Phase.CONFIGURING, munge_ok=True), "MIXED", "POWERING_UP", address="239.192.0.1")
    await do(small, p.StartSlurmd(m.name, "now", cloud=True))
    assert small.slurm.orders == [f"addr {m.slot}={m.tailnet_ip}"]
    assert small.agents.args[0]["slurmd_args"][0] == "-b"  # type: ignore[index]
    assert small.get(m.name).phase is Phase.TESTING


async def test_a_node_that_leaves_is_powered_down_before_its_slurmd_stops(small: Small) -> None:
    m = give(small, LEAVING, "IDLE", "DRAIN")
    await do(small, p.Leave(m.name, "idle", SLOT))
    assert small.slurm.orders == [f"power_down force {SLOT}"]
    assert small.agents.orders == ["leave"]
    assert small.get(m.name).left_slurm


@pytest.mark.parametrize(
    ("states", "job", "leaves"),
    [
        (("IDLE",), "", False),  # somebody resumed it
        (("MIXED", "DRAIN"), "RUNNING", False),
        (("MIXED", "DRAIN"), "CONFIGURING", False),  # its gang's last node may come up at any moment
        (("MIXED", "POWERING_UP"), "CONFIGURING", True),  # its job waits for another machine
        (("IDLE", "POWERED_DOWN"), "", True),
        (("IDLE", "POWERING_DOWN"), "", True),
    ],
)
async def test_a_node_leaves_only_when_no_job_can_come(
    small: Small, states: tuple[str, ...], job: str, leaves: bool
) -> None:
    m = give(small, LEAVING, *states, job=job)
    await do(small, p.Leave(m.name, "idle", SLOT))
    assert small.get(m.name).left_slurm is leaves
    assert small.slurm.orders == []


@pytest.mark.parametrize("step", [p.Leave("", "", SLOT, forced=True), p.Leave("", "", SLOT, dead=True)])
async def test_jobs_go_back_to_the_queue_before_a_dead_node_is_powered_down(small: Small, step: p.Leave) -> None:
    m = give(small, LEAVING, "MIXED", job="RUNNING")
    await do(small, replace(step, subject=m.name))
    assert small.slurm.orders == [f"down {SLOT}", f"power_down force {SLOT}"]


@pytest.mark.parametrize("step", [p.Leave("", "", SLOT, forced=True), p.Leave("", "", SLOT, dead=True)])
async def test_a_machine_leaves_a_slot_with_another_machine_as_it_is(small: Small, step: p.Leave) -> None:
    other = machine(Phase.READY, name=f"{LEAVING.name}x", instance_id="i-other", tailnet_ip="100.64.0.77")
    small.journal.put(other, "phase", "given", NOW)
    m = give(small, LEAVING, "MIXED", job="RUNNING", address=other.tailnet_ip)
    await do(small, replace(step, subject=m.name))
    assert small.slurm.orders == [], "the job is not on this machine"
    assert small.get(m.name).left_slurm


async def test_a_dead_machine_under_a_job_that_waits_leaves_the_slot_to_the_next(small: Small) -> None:
    m = give(small, LEAVING, "MIXED", "POWERING_UP", job="CONFIGURING")
    await do(small, p.Leave(m.name, "gone", SLOT, dead=True))
    assert small.slurm.orders == []
    assert small.get(m.name).left_slurm


@pytest.mark.parametrize("flag", ["POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN"])
async def test_a_node_that_is_powered_down_is_not_kept_after_all(small: Small, flag: str) -> None:
    m = give(small, replace(LEAVING, removal=Removal.SCALE_DOWN, drained_at=LEAVING.phase_since), "IDLE", "DRAIN", flag)
    await do(small, p.CancelRemoval(m.name, "wanted again"))
    assert small.get(m.name).phase is Phase.DRAINING
    assert small.slurm.orders == []
