"""What meshd relies on in Slurm's power saving, and its verbs for it, against slurmctld and slurmd of two versions."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from meshd.codes import DemandCode
from meshd.errors import SlurmError
from meshd.model.observed import SlurmJob, SlurmNode, SlurmView
from meshd.model.plan import OpenSlots, Plan
from meshd.plan.slots import NOBODY, SlotPool, slot_changes, to_close, unwanted_now
from meshd.slurm.client import SlurmClient
from meshd.slurm.power_saving import RESUME_PROGRAM, SUSPEND_PROGRAM
from tests.integration.slurm_lab import NETWORK, POWER_CONF, Host, Lab, wait_until
from tests.integration.test_slurm_real import IMAGES, image_layers
from tests.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and namespaces"),
]

POWER = f"""
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectTypeParameters=CR_Core
GresTypes=gpu
TreeWidth=65533
ResumeProgram={RESUME_PROGRAM}
SuspendProgram={SUSPEND_PROGRAM}
ResumeTimeout=300
SuspendTimeout=5
SuspendTime=2000000000
SuspendExcNodes=h100-4:1
ResumeRate=0
SuspendRate=0
PrivateData=cloud
NodeName=h100-[1-4] NodeAddr=239.192.0.[1-4] CPUs=2 RealMemory=500 Gres=gpu:h100:2 State=CLOUD
PartitionName=h100 Nodes=h100-[1-4] Default=YES MaxTime=INFINITE State=UP
"""
GRES = "NodeName=h100-[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-1]\n"
SLOTS = [f"h100-{index}" for index in range(1, 5)]
POOL = SlotPool("h100", 4, "h100")


@pytest.fixture(params=list(IMAGES))
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(image_layers(request.param), tmp_path / "lab", suite=request.param)
    try:
        lab.start(["head", "m1"])
        head = lab.hosts["head"]
        (head.conf_dir / "slurm.conf").write_text(POWER_CONF + POWER)
        (head.conf_dir / "gres.conf").write_text(GRES)
        for host in lab.hosts.values():
            host.without_cgroups()
        for program in (RESUME_PROGRAM, SUSPEND_PROGRAM):
            head.call(
                "sh", "-c", f"install -d {Path(program).parent}; printf '#!/bin/sh\\n' >{program}; chmod 755 {program}"
            )
        head.start_slurmctld()
        yield lab
    finally:
        lab.close()


class Power:
    """The head's Slurm, with meshd's client."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.client = SlurmClient(lab.hosts["head"].runner, 20.0)

    @property
    def head(self) -> Host:
        return self.lab.hosts["head"]

    def sbatch(self, *options: str) -> str:
        argv = ["sbatch", "--parsable", "-o", "/dev/null", "--gpus-per-node=1", *options, "--wrap", "sleep 600"]
        return self.head.call(*argv).strip()

    async def job(self, job: str, state: str) -> SlurmJob:
        def found(view: SlurmView) -> bool:
            return any(one.id == job and one.state == state for one in view.jobs)

        view = await until(self.client.view, found, f"job {job} is {state}", 60.0)
        return next(one for one in view.jobs if one.id == job)

    async def slot(self, slot: str, right: Callable[[SlurmNode], bool], what: str) -> SlurmNode:
        view = await until(self.client.view, lambda view: right(view.nodes[slot]), f"{slot} is {what}", 60.0)
        return view.nodes[slot]

    async def free(self, *slots: str) -> None:
        for slot in slots:
            await self.slot(slot, lambda node: node.states == {"IDLE", "CLOUD", "POWERED_DOWN"}, "idle~")

    async def powering_up(self, slot: str) -> None:
        await self.slot(slot, lambda node: "POWERING_UP" in node.states, "powering up")

    async def up(self, slot: str) -> None:
        """Have a machine on a slot that powers up."""
        machine = self.lab.hosts["m1"]
        await self.client.set_node_addrs({slot: machine.address})
        machine.start_slurmd("-b", "--conf-server", f"{NETWORK}.1:6817", "-N", slot)
        await self.slot(slot, lambda node: node.up, "up")


@pytest.fixture
def power(lab: Lab) -> Power:
    return Power(lab)


async def test_jobs_that_wait_for_their_slots(power: Power) -> None:
    """The fields of jobs, what a requeue leaves behind, and what who waits at a terminal sees."""
    view = await power.client.view()
    assert (view.power_saving, set(view.nodes)) == (True, set(SLOTS))
    assert view.suspend_exc == frozenset(), "the one that is to stay up is not up"
    first, second = power.sbatch("-N1", "-w", "h100-1"), power.sbatch("-N1", "-w", "h100-2", "--no-requeue")
    argv = power.head.argv(["salloc", "-N1", "-w", "h100-3", "sleep", "600"])
    salloc = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        job, stays = await power.job(first, "CONFIGURING"), await power.job(second, "CONFIGURING")
        assert (job.batch, job.requeue, stays.requeue) == (True, True, False)
        await power.powering_up("h100-3")
        view = await power.client.view()
        (waits,) = [one for one in view.jobs if one.nodes == ("h100-3",)]
        assert (waits.batch, waits.configuring) == (False, True)
        with pytest.raises(SlurmError):
            await power.client.requeue(waits.id)
        await power.client.tell(waits.id, "meshd: no capacity")
        await power.client.cancel(waits.id)
        said, _ = salloc.communicate(timeout=30)
        assert "meshd: no capacity" in said
        assert "revoked" in said
    finally:
        salloc.kill()
    await power.powering_up("h100-1")
    with pytest.raises(SlurmError):
        await power.client.requeue(second)
    await power.client.update_job(second, requeue=True)
    for one in (first, second):
        await power.client.requeue(one)
        await power.client.update_job(one, wait_s=600, admin_comment="meshd: no capacity", requeue=one == first)
    for one in (first, second):
        back = await power.job(one, "PENDING")
        assert (back.nodes, back.admin_comment, back.requeue) == ((), "meshd: no capacity", one == first)
    node = (await power.client.view()).nodes["h100-1"]
    assert node.powering_up, "its slot powers up for nobody"
    assert not node.held
    await power.client.update_job(first, wait_s=0, admin_comment="")
    assert (await power.job(first, "CONFIGURING")).admin_comment == ""


async def test_a_slot_that_powers_up_for_nobody_is_free_again(power: Power) -> None:
    job = power.sbatch("-N2", "-w", "h100-[1-2]")
    await power.job(job, "CONFIGURING")
    await power.powering_up("h100-1")
    power.head.call("scancel", job)
    await power.slot("h100-1", lambda node: not node.held, "without a job")
    plan = Plan(unwanted_slots=("h100-1", "h100-2"))
    closed = to_close(plan.unwanted_slots, await power.client.view())
    assert closed == ("h100-1", "h100-2")
    await power.client.power_down(closed, NOBODY)
    await asyncio.sleep(2)  # without force Slurm would wait until ResumeTimeout
    unwanted = unwanted_now(plan.unwanted_slots, await power.client.view())
    assert unwanted == ("h100-1", "h100-2")
    await power.client.power_down(unwanted, "meshd: nobody waits for it", force=True)
    await power.free("h100-1", "h100-2")
    again = power.sbatch("-N2", "-w", "h100-[1-2]")
    await power.job(again, "CONFIGURING")
    await power.powering_up("h100-1")
    # Closed after a job got it: the job stays. A drain would put it back, or end one that may not be requeued.
    await power.client.power_down(["h100-1"], NOBODY)
    assert (await power.job(again, "CONFIGURING")).nodes == ("h100-1", "h100-2")
    await power.client.drain("h100-2", "meshd: x")
    await power.job(again, "PENDING")


async def test_a_planned_power_down_cannot_be_taken_back_and_a_drain_can(power: Power) -> None:
    """Why a node with jobs is drained, and powered down only once it is idle."""
    job = power.sbatch("-N1", "-w", "h100-1")
    await power.job(job, "CONFIGURING")
    await power.up("h100-1")
    await power.job(job, "RUNNING")
    await power.client.drain("h100-1", "meshd: leaves")
    await power.client.resume("h100-1")
    node = (await power.client.view()).nodes["h100-1"]
    assert (node.drained, node.reason) == (False, "")
    power.head.call("scontrol", "update", "nodename=h100-1", "reason=meshd: of the machine before")
    await power.client.forget_reason("h100-1")
    assert (await power.client.view()).nodes["h100-1"].reason == ""
    await power.client.power_down(["h100-1"], "meshd: leaves")
    await power.client.resume_slots(["h100-1"])
    await power.client.power_up(["h100-1"])
    assert (await power.client.view()).nodes["h100-1"].leaves_power
    assert (await power.job(job, "RUNNING")).nodes == ("h100-1",)
    power.head.call("scancel", job)
    await power.slot("h100-1", lambda node: node.powered_down, "powered down")
    power.lab.hosts["m1"].stop("slurmd")
    await power.free("h100-1")


async def test_slots_are_closed_and_opened_and_brought_back(power: Power) -> None:
    until_at = datetime.now(UTC) + timedelta(minutes=5)
    closed = Plan(open_slots={"h100": OpenSlots(0, DemandCode.NO_CAPACITY, "aws has none", until_at)})
    for reason, slots in slot_changes([POOL], (), await power.client.view(), closed).drain.items():
        await power.client.drain_slots(slots, reason)
    job = power.sbatch("-N1")
    waits = await power.job(job, "PENDING")
    assert waits.nodes == ()
    power.head.stop("slurmctld")
    power.head.start_slurmctld()
    await power.client.reconfigure()
    wait_until(lambda: "is UP" in power.head.call("scontrol", "ping", check=False), "slurmctld")
    assert slot_changes([POOL], (), await power.client.view(), closed).none, "Slurm has kept it"
    opened = Plan(open_slots={"h100": OpenSlots(4)})
    await power.client.resume_slots(slot_changes([POOL], (), await power.client.view(), opened).resume)
    await power.job(job, "CONFIGURING")
    power.head.call("scancel", job)
    # DOWN, as after ResumeTimeout; and then resumed, which leaves a slot that Slurm gives to no job.
    await power.client.down_slots(SLOTS[2:], "meshd: x")
    await power.client.resume_slots(["h100-4"])
    view = await power.client.view()
    found = slot_changes([POOL], (), view, opened)
    broken = (*found.power_down, *found.strays)
    assert "h100-3" in broken
    if "NOT_RESPONDING" in view.nodes["h100-4"].states:
        assert "h100-4" in broken
    await power.client.power_down(broken, "meshd: no job could use it", force=True)
    await power.free("h100-3", "h100-4")
    await power.job(power.sbatch("-N2", "-w", "h100-[3-4]"), "CONFIGURING")
