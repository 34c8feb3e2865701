"""While head and nodes change the munge key, Slurm's files and nodes that come in wait; a stuck one stops neither."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from meshd.daemon.machines.node_steps import NodeSteps
from meshd.daemon.munge_key.quiesce import HOLD_MAX_S, Quiesce
from meshd.model.machine import Phase, Removal
from meshd.model.plan import MarkReady, StartSlurmd
from meshd.munge.rotation import UNSETTLED_MAX_S, MungeRotation, MungeStage, begin
from meshd.store.munge_rotations import MungeRotations
from tests.live import live_settings
from tests.unit.daemon.small import Small
from tests.unit.slurm_publisher import JumpingClock, PublisherLab, wanted
from tests.unit.worlds import NOW, machine, node


class Change:
    """A rotation in the middle of its change, by a clock that jumps; it ends after so many seconds."""

    def __init__(self, clock: JumpingClock, ends_after_s: float) -> None:
        self.clock = clock
        self.ends_at_s = clock.time_s + ends_after_s
        staged = replace(begin("r", "old", clock.now(), "root"), new="new").moved(MungeStage.STAGE, clock.now())
        self.at: MungeRotation = staged.moved(MungeStage.SWITCH, clock.now())
        self.quiesce = Quiesce(cast("MungeRotations", self), clock)
        clock.on_sleep = self.look

    def last(self) -> MungeRotation:
        return self.at

    def look(self) -> None:
        if self.clock.time_s >= self.ends_at_s and not self.at.ended:
            now = self.clock.now()
            self.at = self.at.moved(MungeStage.VERIFY, now).moved(MungeStage.DONE, now)


async def published(world: PublisherLab, change: Change, wants: Callable[[], None]) -> list[str]:
    """Let the publisher work until all is in force; what slurmctld was asked for."""
    publisher = world.publisher = world.made(change.quiesce.wait_until_quiet)
    task = asyncio.create_task(publisher.run())
    try:
        wants()
        for _ in range(2000):
            await asyncio.sleep(0)
            if not publisher.status().pending and publisher.published:
                break
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return world.slurm.calls


@pytest.fixture
def world(tmp_path: Path) -> PublisherLab:
    return PublisherLab(tmp_path)


async def test_what_is_asked_for_meanwhile_is_one_reconfigure_after_it(world: PublisherLab) -> None:
    change = Change(world.clock, 6.0)
    last = wanted("a-1", "a-2")

    def wants() -> None:
        world.publisher.request(wanted("a-1"))
        look = world.clock.on_sleep

        def later() -> None:
            look()
            if world.clock.time_s > 4.0 and not change.at.ended:
                world.publisher.request(last)
            if not change.at.ended:
                assert world.slurm.calls == [], "slurmctld is left alone"

        world.clock.on_sleep = later

    calls = await published(world, change, wants)
    assert change.at.ended
    assert calls.count("scontrol reconfigure") == 1
    assert set(world.publisher.published) == {"a-1", "a-2"}


async def test_a_change_that_is_stuck_does_not_hold_it_back_for_long(world: PublisherLab) -> None:
    change = Change(world.clock, 1e9)
    await published(world, change, lambda: world.publisher.request(wanted("a-1")))
    assert change.at.stage is MungeStage.SWITCH
    assert set(world.publisher.published) == {"a-1"}
    assert UNSETTLED_MAX_S <= world.clock.time_s < UNSETTLED_MAX_S + 3


async def test_a_clock_that_was_set_back_does_not_hold_it_back_for_long() -> None:
    clock = JumpingClock()
    change = Change(clock, 1e9)
    change.at = replace(change.at, stage_since=clock.now() + timedelta(days=1))
    await change.quiesce.wait_until_quiet()
    assert change.quiesce.on and clock.time_s < HOLD_MAX_S + 1


async def test_a_restart_that_waited_for_jobs_looks_once_more(tmp_path: Path) -> None:
    """Slurm 22.05: between the look at the jobs and the restart lies up to a minute, in which a change may begin."""
    world = PublisherLab(tmp_path, "22.05.8")
    world.slurm.jobs = [("7", "a-1", "0:01")]
    change = Change(world.clock, 0.0)
    change.look()
    assert change.at.ended

    def wants() -> None:
        world.publisher.request(wanted("a-1", size=6))

        def later() -> None:
            if world.clock.time_s >= 2.5 and change.at.id == "r":
                again = replace(begin("r2", "new", world.clock.now(), "root"), new="newer")
                change.at = again.moved(MungeStage.STAGE, world.clock.now()).moved(MungeStage.SWITCH, world.clock.now())
                change.ends_at_s = world.clock.time_s + 9.0
            change.look()
            assert world.restarts == 0 or change.at.ended

        world.clock.on_sleep = later

    await published(world, change, wants)
    assert (world.restarts, change.at.id) == (1, "r2")
    assert world.clock.time_s > 9.0


async def test_a_node_that_comes_in_at_that_moment_waits(tmp_path: Path) -> None:
    clock = JumpingClock()
    change = Change(clock, 4.0)
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
    change = Change(clock, 4.0)
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
