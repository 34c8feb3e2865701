"""While head and nodes change the munge key, Slurm's files and nodes that come in wait; a stuck one stops neither."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from meshd.daemon.machines.node_steps import NodeSteps
from meshd.daemon.munge_key.quiesce import HOLD_MAX_S, Quiesce
from meshd.model.machine import Phase, Removal
from meshd.model.plan import MarkReady, StartSlurmd
from meshd.munge.rotation import UNSETTLED_MAX_S, MungeRotation, MungeStage, begin
from meshd.store.journal import Journal
from meshd.store.munge_rotations import MungeRotations
from tests.live import live_settings
from tests.unit.daemon.small import Small
from tests.unit.slurm.slurm_publisher import JumpingClock, PublisherLab, wanted
from tests.unit.worlds import NOW, machine, node


class Change:
    """A rotation in the middle of its switch, by a clock that jumps; it ends after this many seconds."""

    def __init__(self, directory: Path, clock: JumpingClock, ends_after_s: float) -> None:
        self.clock = clock
        self.ends_at_s = clock.time_s + ends_after_s
        self.journal = Journal(directory / "change.db")
        self.rotations = MungeRotations(self.journal)
        staged = replace(begin("r", "old", clock.now(), "root"), new="new").moved(MungeStage.STAGE, clock.now())
        self.put(staged.moved(MungeStage.SWITCH, clock.now()))
        self.quiesce = Quiesce(self.rotations, clock)
        clock.on_sleep = self.look

    @property
    def at(self) -> MungeRotation:
        last = self.rotations.last()
        assert last is not None
        return last

    def put(self, rotation: MungeRotation) -> None:
        self.rotations.put(rotation, "", self.clock.now())

    def look(self) -> None:
        if self.clock.time_s >= self.ends_at_s and not self.at.ended:
            now = self.clock.now()
            self.put(self.at.moved(MungeStage.VERIFY, now).moved(MungeStage.DONE, now))


async def published(lab: PublisherLab, change: Change, wants: Callable[[], None]) -> list[str]:
    """Let the publisher work until all is in force; what slurmctld was asked for."""
    publisher = lab.publisher = lab.made(change.quiesce.wait_until_quiet)
    task = asyncio.create_task(publisher.run())
    try:
        wants()
        for _ in range(2000):
            await asyncio.sleep(0)
            if not publisher.status().pending and publisher.applier.node_addrs:
                break
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return lab.slurm.calls


@pytest.fixture
def lab(tmp_path: Path) -> PublisherLab:
    return PublisherLab(tmp_path)


async def test_requests_in_the_meantime_are_one_reconfigure_afterwards(lab: PublisherLab, tmp_path: Path) -> None:
    change = Change(tmp_path, lab.clock, 6.0)
    last = wanted("a-1", "a-2")

    def wants() -> None:
        lab.publisher.request(wanted("a-1"))
        look = lab.clock.on_sleep

        def later() -> None:
            look()
            if lab.clock.time_s > 4.0 and not change.at.ended:
                lab.publisher.request(last)
            if not change.at.ended:
                assert lab.slurm.calls == [], "slurmctld is left alone"

        lab.clock.on_sleep = later

    calls = await published(lab, change, wants)
    assert change.at.ended
    assert calls.count("scontrol reconfigure") == 1
    assert set(lab.publisher.applier.node_addrs) == {"a-1", "a-2"}


async def test_a_stuck_switch_does_not_hold_it_back_for_long(lab: PublisherLab, tmp_path: Path) -> None:
    change = Change(tmp_path, lab.clock, 1e9)
    await published(lab, change, lambda: lab.publisher.request(wanted("a-1")))
    assert change.at.stage is MungeStage.SWITCH
    assert set(lab.publisher.applier.node_addrs) == {"a-1"}
    assert UNSETTLED_MAX_S <= lab.clock.time_s < UNSETTLED_MAX_S + 3


async def test_a_clock_that_was_set_back_does_not_hold_it_back_for_long(tmp_path: Path) -> None:
    clock = JumpingClock()
    change = Change(tmp_path, clock, 1e9)
    change.put(replace(change.at, stage_since=clock.now() + timedelta(days=1)))
    await change.quiesce.wait_until_quiet()
    assert change.quiesce.on and clock.time_s < HOLD_MAX_S + 1


async def test_a_restart_that_waited_for_jobs_looks_once_more(tmp_path: Path) -> None:
    """Slurm 22.05: between the look at the jobs and the restart lies up to a minute, in which a change may begin."""
    lab = PublisherLab(tmp_path, "22.05.8")
    lab.slurm.jobs = [("7", "a-1", "0:01")]
    change = Change(tmp_path, lab.clock, 0.0)
    change.look()
    assert change.at.ended

    def wants() -> None:
        lab.publisher.request(wanted("a-1", size=6))

        def later() -> None:
            if lab.clock.time_s >= 2.5 and change.at.id == "r":
                again = replace(begin("r2", "new", lab.clock.now(), "root"), new="newer")
                change.put(again.moved(MungeStage.STAGE, lab.clock.now()).moved(MungeStage.SWITCH, lab.clock.now()))
                change.ends_at_s = lab.clock.time_s + 9.0
            change.look()
            assert lab.restarts == 0 or change.at.ended

        lab.clock.on_sleep = later

    await published(lab, change, wants)
    assert (lab.restarts, change.at.id) == (1, "r2")
    assert lab.clock.time_s > 9.0


async def test_a_node_that_comes_in_at_that_moment_waits(tmp_path: Path) -> None:
    clock = JumpingClock()
    change = Change(tmp_path, clock, 4.0)
    small = Small(tmp_path)
    steps = NodeSteps(
        small.machine_store, small.slurm, small.agents, None, live_settings(), change.quiesce.wait_until_quiet
    )
    one = small.journal.put(machine(Phase.CONFIGURING, munge_ok=True, line_published=True), "phase", "given", NOW)
    other = small.journal.put(machine(Phase.TESTING, index=2), "phase", "given", NOW)
    small.slurm.set(node(other, "IDLE", "DRAIN", reason="meshd: free slot"))

    def nothing_yet() -> None:
        change.look()
        if not change.at.ended:
            assert small.agents.orders == small.slurm.orders == []

    clock.on_sleep = nothing_yet
    await asyncio.gather(
        steps.start_slurmd(StartSlurmd(one.name, "now")), steps.mark_ready(MarkReady(other.name, "up"))
    )
    assert change.at.ended
    assert small.agents.orders == ["start_slurmd"]
    assert (small.machine_store.get(one.name).phase, small.machine_store.get(other.name).phase) == (
        Phase.TESTING,
        Phase.READY,
    )


async def test_one_that_is_removed_while_it_waits_is_not_let_in(tmp_path: Path) -> None:
    clock = JumpingClock()
    change = Change(tmp_path, clock, 4.0)
    small = Small(tmp_path)
    steps = NodeSteps(
        small.machine_store, small.slurm, small.agents, None, live_settings(), change.quiesce.wait_until_quiet
    )
    one = small.journal.put(machine(Phase.CONFIGURING, munge_ok=True, line_published=True), "phase", "given", NOW)
    waiting = asyncio.create_task(steps.start_slurmd(StartSlurmd(one.name, "now")))
    await asyncio.sleep(0)
    small.machine_store.change(one.name, "remove", "said root", removal=Removal.BY_USER)
    await waiting
    assert small.agents.orders == []
    assert not small.machine_store.get(one.name).may_run_jobs
