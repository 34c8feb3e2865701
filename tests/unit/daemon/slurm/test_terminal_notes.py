"""Who waits at a terminal is told once, and again when something has changed."""

from __future__ import annotations

import pytest

from meshd.daemon.slurm.terminal_notes import AT_ONCE_MAX, SPACING_S, TerminalNotes
from meshd.errors import SlurmError
from meshd.plan.waiting import COMMENT, Wait, WaitingJob
from tests.clocks import HandClock


class Slurm:
    """Remembers what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.refuses = False

    async def tell(self, job: str, message: str) -> None:
        if self.refuses:
            raise SlurmError("Job/step already completing or completed")
        self.sent.append((job, message))


def job(number: str = "7", text: str = "2 machines boot", *, batch: bool = False, wait: Wait = Wait.BOOT) -> WaitingJob:
    return WaitingJob(number, "ann", "h100", 2, 0, wait, None, text, batch)


class World:
    """The controller with its surroundings."""

    def __init__(self) -> None:
        self.jobs, self.slurm, self.clock = [job()], Slurm(), HandClock()
        self.notes = TerminalNotes(lambda: self.jobs, self.slurm, self.clock)


async def test_each_is_told_once() -> None:
    world = World()
    for _ in range(3):
        await world.notes.reconcile()
        world.clock.t_s += SPACING_S
    assert world.slurm.sent == [("7", f"{COMMENT}2 machines boot")]


async def test_a_change_is_told_but_not_often() -> None:
    world = World()
    for second in range(31):
        world.jobs = [job(text=f"until 12:{second // 2:02}")]
        await world.notes.reconcile()
        world.clock.t_s += 1
    assert len(world.slurm.sent) == 3
    assert world.slurm.sent[-1] == ("7", f"{COMMENT}until 12:15")


@pytest.mark.parametrize("one", [job(batch=True), job(wait=Wait.START)])
async def test_who_needs_no_message_gets_none(one: WaitingJob) -> None:
    world = World()
    world.jobs = [one]
    await world.notes.reconcile()
    assert world.slurm.sent == []


async def test_a_job_that_slurm_does_not_have_any_more_stops_nothing() -> None:
    world = World()
    world.slurm.refuses = True
    await world.notes.reconcile()
    world.slurm.refuses = False
    world.jobs = [job(), job("8")]
    await world.notes.reconcile()
    assert [number for number, _ in world.slurm.sent] == ["8"]


async def test_many_at_once_are_told_one_pass_after_the_other() -> None:
    world = World()
    world.jobs = [job(str(number)) for number in range(AT_ONCE_MAX + 5)]
    await world.notes.reconcile()
    assert len(world.slurm.sent) == AT_ONCE_MAX
    await world.notes.reconcile()
    assert len(world.slurm.sent) == AT_ONCE_MAX + 5
