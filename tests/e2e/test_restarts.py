"""Restarts of what runs on the head: nothing is drained, nothing is lost, all come back."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import pytest_asyncio

from tests.e2e.lab import WAIT_FOR_WORD, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


class Working:
    """Two machines, one of them with a job."""

    def __init__(self, lab: Lab, job: str, slot: str, machines: dict[str, str]) -> None:
        self.lab = lab
        self.job = job
        self.slot = slot
        self.machines = machines

    async def beats(self) -> dict[str, float]:
        """Seconds since each machine's last word, by machine."""
        rows = await self.lab.nodes()
        return {name: row["heartbeat_age_s"] for name, row in rows.items() if row["heartbeat_age_s"] is not None}

    async def all_is_well(self) -> bool:
        """Heartbeats are fresh and Slurm has both nodes, open to jobs."""
        beats, slots = await self.beats(), await self.lab.slots()
        states = {slots[slot].states for slot in self.machines}
        open_to_jobs = {frozenset({"IDLE"}), frozenset({"MIXED"}), frozenset({"ALLOCATED"})}
        return len(beats) == 2 and max(beats.values()) < 30 and states <= open_to_jobs

    async def untouched(self, event: int) -> None:
        """The same machines, none drained, the job still at its first run."""
        lab = self.lab
        rows = await lab.by_slot()
        assert {slot: row["machine"] for slot, row in rows.items()} == self.machines
        assert {row["phase"] for row in rows.values()} == {"ready"}

        async def job_is_shown() -> bool:
            return (await lab.by_slot())[self.slot]["jobs"] == [self.job]

        await lab.until(job_is_shown, "meshd has read Slurm again")
        job = await lab.job(self.job)
        assert (job["JobState"], job["Restarts"]) == ("RUNNING", "0")
        kinds = {e["kind"] for e in await lab.events(event)}
        assert not kinds & {"drained", "left", "failure", "terminate_called", "remove", "force"}, kinds
        # By name: a slurmctld that has just started would rather power up a slot than wait for a node to answer.
        other = next(slot for slot in self.machines if slot != self.slot)
        assert await lab.srun("-w", other, "printenv", "SLURMD_NODENAME") == other


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def working(booted: Lab) -> Working:
    lab = booted
    await lab.begin(__name__, keep=True)
    await lab.have(2)
    job = await lab.sbatch(WAIT_FOR_WORD)
    slot = await lab.running(job)
    return Working(lab, job, slot, {row["slot"]: row["machine"] for row in (await lab.nodes()).values()})


async def fresh_beats(working: Working, began: float) -> bool:
    """Every agent has spoken since a moment."""
    asked = time.monotonic()
    beats = await working.beats()
    return len(beats) == 2 and max(beats.values()) < asked - began


async def main_pid(lab: Lab, unit: str) -> str:
    """Which process a service of the head is now; "0" while it is none."""
    return (await lab.head.run("systemctl", "show", "-P", "MainPID", unit)).text


@pytest.mark.parametrize(
    ("unit", "command"),
    [
        ("tailscaled", "systemctl restart tailscaled"),
        ("meshd", "systemctl restart meshd"),
        ("meshd", "systemctl kill -s KILL meshd; systemctl reset-failed meshd; systemctl start meshd"),
        ("slurmctld", "systemctl restart slurmctld"),
        ("slurmctld", "systemctl kill -s KILL slurmctld"),
        ("munge", "systemctl restart munge"),
    ],
)
async def test_nothing_is_lost(working: Working, unit: str, command: str, figure: Callable[[str], None]) -> None:
    lab = working.lab
    event, before = await lab.last_event(), await main_pid(lab, unit)
    await lab.head.shell(command, timeout_s=90)
    began = time.monotonic()

    async def another() -> bool:
        return await main_pid(lab, unit) not in {before, "0"}

    async def well() -> bool:
        answers = (await lab.head.run("scontrol", "ping", check=False)).returncode == 0
        if not answers or await lab.get("nodes") is None:
            return False
        # Restarts of Slurm and munge cut no agent's line: its next word comes when the head lets it go.
        if unit in {"tailscaled", "meshd"} and not await fresh_beats(working, began):
            return False
        return await working.all_is_well() and not await lab.problems()

    await lab.until(another, f"another {unit} runs")  # what was killed may answer for a moment yet
    await lab.until(well, f"all is well after {command}")
    figure(f"`{command.split(';')[0]}`: all is well again after {time.monotonic() - began:.1f} s")
    await working.untouched(event)
