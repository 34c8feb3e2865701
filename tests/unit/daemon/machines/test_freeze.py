"""A freeze holds at once: no create call and no end goes out, not even what had its turn already."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from meshd.errors import RateLimited
from meshd.model import plan as p
from meshd.model.desired import Target
from meshd.model.freeze import Freeze
from meshd.model.machine import Machine, Phase
from meshd.store.freezes import Freezes
from meshd.store.journal import Journal
from meshd.store.launches import Launches
from tests.unit.daemon.small import Small
from tests.unit.worlds import NOW, ago, around, machine

FREEZE = Freeze(NOW, "ann", "the cloud lies")


async def test_orders_that_wait_for_their_turn_are_taken_back(tmp_path: Path) -> None:
    small = Small(tmp_path, at_once=1)
    small.journal.set_target(Target("h100", 3), "x", NOW)
    small.reconciler.tick()
    small.reconciler.tick()
    small.freezes.freeze(FREEZE)  # the calls are about to be made
    await small.settle()
    assert small.cloud.launched == [] and small.journal.machines() == []
    assert all(FREEZE.words in m.reason for m in small.journal.history())
    small.reconciler.tick()
    assert small.journal.machines() == []
    small.freezes.thaw("ann", NOW)
    for _ in range(3):
        small.reconciler.tick()
        await small.settle()
    assert len(small.cloud.launched) == 3
    small.journal.close()


async def test_an_order_in_doubt_is_not_repeated_and_one_whose_key_was_made_meanwhile_is_not_sent(
    tmp_path: Path,
) -> None:
    unclear = machine(Phase.LAUNCHING, create_unclear_at=ago(5))
    small = Small(tmp_path, unclear, machine(Phase.REQUESTED, index=2))

    made = small.agents.user_data

    async def slow(m: Machine) -> object:
        small.freezes.freeze(FREEZE)
        return await made(m)

    small.agents.user_data = slow  # type: ignore[method-assign,assignment]
    small.executor.begin(p.Launch(machine(Phase.REQUESTED, index=2).name, "now"))
    await small.settle()
    small.executor.begin(p.Launch(unclear.name, "again"))
    await small.settle()
    assert small.cloud.launched == []
    assert [m.phase for m in small.journal.machines()] == [Phase.LAUNCHING]
    small.journal.close()


async def test_an_end_that_waits_for_its_turn_is_not_sent(tmp_path: Path) -> None:
    one = machine(Phase.TERMINATING)
    small = Small(tmp_path, one)
    rate = small.cloud_steps.rates.of("terminate", "aws", "r1")
    rate.refused(small.clock.monotonic_s(), small.clock.monotonic_s(), 5.0)  # the cloud asked for a pause
    small.executor.begin(p.Terminate(one.name, "x"))
    small.freezes.freeze(FREEZE)
    await small.settle()
    assert small.cloud.ended == [] and small.get(one.name).terminate_calls == 0
    orphan = next(iter(around(replace(one, name="lab-h100-3-zzzzzz", instance_id="i-9")).instances["aws"].value))  # type: ignore[union-attr,arg-type]
    small.executor.begin(p.TerminateOrphan(orphan.id, "x", orphan))
    await small.settle()
    assert small.cloud.ended == []
    small.freezes.thaw("ann", NOW)
    small.executor.begin(p.TerminateOrphan(orphan.id, "x", orphan))
    await small.settle()
    assert small.cloud.ended == [orphan.id]
    small.journal.close()


async def test_idle_nodes_stay_and_the_time_goes_on(tmp_path: Path) -> None:
    one = machine(Phase.READY)
    small = Small(tmp_path, one)
    small.pool = replace(small.pool, idle_timeout_s=600)
    small.freezes.freeze(FREEZE)
    for at_s in (0.0, 700.0, 900.0):
        small.clock.t_s = at_s
        now = small.clock.now()
        small.journal.note(replace(one, heartbeat_at=now))
        seen = around(one)
        small.seen = replace(
            seen, slurm=replace(seen.slurm, at=now), tailnet=replace(seen.tailnet, at=now),
            instances={"aws": replace(seen.instances["aws"], at=now)},
        )  # fmt: skip
        if at_s == 900:
            small.freezes.thaw("ann", now)
        small.reconciler.tick()
        assert bool(small.get(one.name).removal) == (at_s == 900)
    small.journal.close()


def test_a_freeze_survives_a_restart_and_freezing_twice_changes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    freezes = Freezes(journal, NOW)
    assert freezes.current is None and freezes.thaw("ann", NOW) is None
    assert freezes.freeze(replace(FREEZE, reason="a\x1b[31m" + "b" * 300)).reason.startswith("a [31mb")
    assert len(freezes.freeze(FREEZE).reason) == 200
    journal.close()
    journal = Journal(tmp_path / "j.db")
    again = Freezes(journal, NOW)
    assert again.current is not None and (again.current.at, again.current.by) == (NOW, "ann")
    again.thaw("bob", NOW)
    assert [e.kind for e in journal.events()] == ["freeze", "thaw"]
    assert Freezes(journal, NOW).current is None
    journal.close()


async def test_orders_are_counted_from_the_journal(tmp_path: Path) -> None:
    small = Small(tmp_path)
    launches = Launches(small.journal, small.clock.now())
    small.journal.set_target(Target("h100", 3), "x", NOW)
    small.cloud.errors = [RateLimited("slowly")]
    small.reconciler.tick()
    small.reconciler.tick()
    await small.settle()
    assert len(launches.within(600, small.clock.now())) == 2, "one was refused for its rate"
    for m in small.journal.machines():
        if m.instance_id:
            small.journal.put(replace(m, phase=Phase.GONE, gone_at=small.clock.now()), "phase", "x", NOW)
    small.journal.close()
    journal = Journal(tmp_path / "j.db")
    again = Launches(journal, small.clock.now())
    assert len(again.within(600, small.clock.now())) == 2, "also those that are gone"
    assert again.within(600, small.clock.now() + timedelta(seconds=600)) == ()
    early = small.clock.now() - timedelta(hours=2)
    assert again.within(600, early) == (early, early), "the clock was set back: they are of now"
    journal.close()
