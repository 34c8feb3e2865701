"""The loop goes on, whatever happens in a tick; sources never pass an old word for a new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from meshd.codes import FaultCode
from meshd.config import PoolSettings, Settings
from meshd.daemon.live_settings import check_rented
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.daemon.observe.source import Source
from meshd.errors import SlurmError, StoreError
from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Target
from meshd.model.machine import Machine, Phase, set_with_clock, without_future
from meshd.model.observed import Fresh, Unavailable
from tests.codes import faulty
from tests.unit.daemon.small import HandClock, Small
from tests.unit.worlds import NOW, ago, around, instance, machine, snapshot


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Small]:
    world = Small(tmp_path)
    yield world
    await world.executor.aclose(1)
    world.journal.close()


# -- the tick ---------------------------------------------------------------------------------------------------------


async def test_from_nothing_to_a_rented_machine(small: Small) -> None:
    small.journal.set_target(Target("h100", 2), "said", NOW)
    for _ in range(3):
        small.reconciler.tick()
        await small.settle()
    assert [m.phase for m in small.journal.machines()] == [Phase.BOOTING] * 2
    assert len({request.token for request in small.cloud.launched}) == 2


async def test_a_journal_that_cannot_be_written_stops_the_tick_not_the_loop(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = small.journal.put(machine(Phase.BOOTING), "phase", "given", NOW)
    small.seen = around(m)

    def full(*_: object, **__: object) -> None:
        raise StoreError("the journal cannot be written: disk full")

    with monkeypatch.context() as patch:
        patch.setattr(small.journal, "put", full)
        small.reconciler.tick()
        assert "disk full" in small.reconciler.problem
        assert small.reconciler.last is not None
    small.reconciler.tick()
    assert small.reconciler.problem == ""
    assert small.get(m.name).phase is Phase.JOINING


async def test_a_breaker_that_cannot_be_written_stops_nothing(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    small.journal.put(machine(Phase.TERMINATING, failure="no boot"), "phase", "given", NOW)

    def broken(pool: str, limit: int = 100) -> list[Machine]:
        raise StoreError("unreadable")

    monkeypatch.setattr(small.journal, "rented_of_pool", broken)
    small.reconciler.tick()
    assert small.reconciler.problem == "unreadable"


async def test_one_illegal_move_does_not_keep_the_others_waiting(small: Small) -> None:
    one = small.journal.put(machine(Phase.READY, index=1), "phase", "given", NOW)
    two = small.journal.put(machine(Phase.READY, index=2), "phase", "given", NOW)
    small.reconciler._begin(p.Plan((p.Move(one.name, "?", Phase.BOOTING), p.Move(two.name, "!", Phase.DRAINING))))
    assert small.get(one.name).phase is Phase.READY
    assert small.get(two.name).phase is Phase.DRAINING


@pytest.mark.parametrize("told", [True, False])
def test_the_launch_time_that_a_cloud_told_is_kept(told: bool) -> None:
    """Else a head whose clock goes back for a while would book that while as well."""
    there = ago(-5) if told else ago(-7)
    m = machine(Phase.READY, launched_at=there, launch_called_at=ago(-7), launch_first_called_at=ago(-7))
    assert without_future(m, NOW).launched_at == (there if told else NOW)
    hour = timedelta(hours=1)
    assert set_with_clock(m, hour, ago(60)).launched_at == (there if told else there + hour)


async def test_after_the_clock_was_set_back_nothing_waits_for_it_to_catch_up(small: Small) -> None:
    m = small.journal.put(machine(Phase.LAUNCHING, launch_called_at=NOW, age_s=0), "phase", "given", NOW)
    small.seen = snapshot(instances={"aws": Fresh((), NOW)})
    small.reconciler.tick()
    small.clock.shift = timedelta(hours=-2)
    small.reconciler.tick()
    healed = small.get(m.name)
    assert healed.launch_called_at == healed.phase_since == small.clock.now()
    assert healed == without_future(healed, small.clock.now())


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1)])
async def test_what_happened_before_the_clock_was_set_is_as_long_ago_as_before(small: Small, step: timedelta) -> None:
    small.clock.t_s += 50
    begun, told = small.clock.now(), small.clock.now() - timedelta(seconds=7)
    m = machine(Phase.BOOTING, launch_called_at=begun, launched_at=told)
    m = small.journal.put(replace(m, created_at=ago(3600), phase_since=begun), "phase", "given", NOW)
    small.journal.set_cooldown(Cooldown(CooldownKey("offer:x"), begun + timedelta(minutes=10), "sold out"), begun)
    small.reconciler.tick()
    small.clock.t_s += 50
    small.clock.shift = step
    small.reconciler.tick()
    after, now = small.get(m.name), small.clock.now()
    assert (after.phase_since, after.launch_called_at) == (begun + step, begun + step)
    assert after.created_at == min(m.created_at, now), "an earlier meshd wrote it"
    assert after.launched_at == told, "its cloud's word: the bill goes by it"
    assert not small.journal.cooldowns(now)
    small.reconciler.tick()
    assert small.get(m.name).phase_since == after.phase_since, "once"


async def test_what_was_called_gone_and_runs_is_ended_after_the_grace_period(small: Small) -> None:
    m = small.journal.put(replace(machine(Phase.READY), phase=Phase.GONE), "phase", "given", NOW)
    for _ in range(4):
        small.seen = snapshot(instances={"aws": Fresh((instance(m),), small.clock.now())})
        small.reconciler.tick()
        await small.settle()
        small.clock.t_s += 120
    assert small.cloud.ended == [m.instance_id]
    assert small.journal.machines() == []


async def test_a_listing_that_comes_and_goes_does_not_make_orphans_young_again(small: Small) -> None:
    stray = instance(machine(Phase.READY), token="", launched_at=None)
    for turn in range(8):
        now = small.clock.now()
        small.seen = snapshot(instances={"aws": Unavailable("?", now) if turn % 2 else Fresh((stray,), now)})
        small.reconciler.tick()
        await small.settle()
        small.clock.t_s += 100
    assert small.cloud.ended != []


async def test_a_step_that_breaks_does_not_spin(small: Small) -> None:
    m = small.journal.put(machine(Phase.TERMINATING), "phase", "given", NOW)
    small.cloud.errors += [KeyError("x")] * 100
    for _ in range(20):
        small.seen = snapshot(instances={"aws": Fresh((instance(m),), small.clock.now())})
        small.reconciler.tick()
        await small.settle()
        small.clock.t_s += 0.1
    assert len(small.cloud.errors) >= 98


# -- sources ----------------------------------------------------------------------------------------------------------


class Reader:
    def __init__(self) -> None:
        self.error: Exception | None = None
        self.reads = 0

    async def __call__(self) -> int:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.reads


def source(reader: Reader, clock: HandClock) -> Source[int]:
    return Source("x", reader, clock, timeout_s=5, interval_s=lambda: 10.0, changed=lambda: None)


async def test_fresh_since_the_first_of_an_unbroken_row() -> None:
    reader, clock = Reader(), HandClock()
    one = source(reader, clock)
    first = clock.now()
    await one.read_once()
    clock.t_s += 10
    await one.read_once()
    assert one.current == Fresh(2, clock.now(), first)
    reader.error = SlurmError("down")
    clock.t_s += 10
    await one.read_once()
    assert isinstance(one.current, Unavailable)
    down = one.current.since
    clock.t_s += 10
    await one.read_once()
    assert one.current == Unavailable("down", down)
    reader.error = None
    clock.t_s += 10
    await one.read_once()
    assert one.current == Fresh(5, clock.now(), clock.now())


async def test_a_fault_of_our_own_leaves_no_old_word_standing() -> None:
    reader, clock = Reader(), HandClock()
    one = source(reader, clock)
    await one.read_once()
    reader.error = KeyError("adapter")
    with pytest.raises(KeyError):
        await one.read_once()
    assert isinstance(one.current, Unavailable)


async def test_who_hurries_during_a_read_gets_another() -> None:
    reader, clock = Reader(), HandClock()
    one: Source[int]

    async def read() -> int:
        if await reader() == 1:
            one.hurry()
        return reader.reads

    one = Source("x", read, clock, timeout_s=5, interval_s=lambda: 1e9, changed=lambda: None)
    task = asyncio.create_task(one.run())
    for _ in range(50):
        await asyncio.sleep(0)
        if reader.reads > 1:
            break
    task.cancel()
    assert reader.reads == 2


# -- settings against what is rented ----------------------------------------------------------------------------------


def test_a_pool_with_machines_cannot_be_removed() -> None:
    with faulty(FaultCode.MACHINE_WITHOUT_PLACE):
        check_rented(Settings(), [machine(Phase.READY)], "meshd.toml")
    check_rented(Settings(), [machine(Phase.TERMINATING), machine(Phase.LOST)], "meshd.toml")
    check_rented(Settings(), [], "meshd.toml")


def test_nor_can_a_slot_that_is_taken() -> None:
    settings = Settings(pools={"h100": PoolSettings(max_nodes=2)})
    check_rented(settings, [machine(Phase.READY, index=2)], "meshd.toml")
    with faulty(FaultCode.MACHINE_WITHOUT_PLACE) as caught:
        check_rented(settings, [machine(Phase.READY, index=3)], "meshd.toml")
    assert "lab-h100-3" in str(caught.value)


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_tokens_outlive_the_journal_and_tell_whose_they_are(tmp_path: Path) -> None:
    from meshd.bootstrap.tokens import hash_token

    one, two = MachineTokens.at(tmp_path / "k"), MachineTokens.at(tmp_path / "k")
    join = one.join_token("lab-a-1-abcdef")
    assert join == two.join_token("lab-a-1-abcdef") != one.node_token("lab-a-1-abcdef")
    hashed = hash_token(join)
    assert two.whose_join(hashed, {"lab-a-1-abcdef": 0, "b": 0}) == "lab-a-1-abcdef"
    assert two.whose_node(hashed, {"lab-a-1-abcdef": 0}) is None
    assert two.whose_join(hashed, {"b": 0}) is None, "its machine is gone"
    assert (tmp_path / "k").stat().st_mode & 0o077 == 0


def test_a_secret_that_was_cut_short_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"")
    with pytest.raises(StoreError):
        MachineTokens.at(tmp_path / "k")


def test_times_are_only_ever_made_earlier() -> None:
    m = machine(Phase.READY, phase_since=ago(-100), drained_at=ago(-5), cloud_asked_at=ago(50))
    healed = without_future(m, NOW)
    assert (healed.phase_since, healed.drained_at, healed.cloud_asked_at) == (NOW, NOW, ago(50))
