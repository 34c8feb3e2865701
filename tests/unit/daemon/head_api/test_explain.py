"""Why a machine, a slot or a pool is as it is."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.faults import Unknown
from meshd.errors import NoCapacity, QuotaExceeded, Uncertain
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Target
from meshd.model.ids import MachineName
from meshd.model.machine import Phase
from meshd.model.observed import Fresh, SlurmNode
from tests.head_room import ROOT, HeadRoom, look_around
from tests.unit.daemon.munge_lab import MungeLab as MungeLab
from tests.unit.worlds import NOW, OFFER, instance, machine, node, slurm, snapshot


async def test_every_attempt_is_explained(room: HeadRoom) -> None:
    """Three offers without capacity, quota on the fourth, connection cut after the effect on the fifth."""
    offers = [replace(OFFER, zone=f"r1{letter}", usd_per_hour=2 + 0.1 * n) for n, letter in enumerate("abcdef")]
    room.seen = snapshot(offers={"aws": Fresh(tuple(offers), NOW)})
    room.cloud.errors += [NoCapacity(f"InsufficientInstanceCapacity in r1{letter}") for letter in "abc"]
    room.cloud.errors += [QuotaExceeded("VcpuLimitExceeded"), Uncertain("connection cut")]
    await room.head.call(e.SCALE, s.ScaleRequest(gpus=1), ROOT)
    for _ in range(12):
        room.reconciler.tick()
        await room.settle()
    unclear = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100-1"))
    assert [(r.outcome, r.offer.split("/")[1]) for r in unclear.rungs] == [
        ("no_capacity", "r1a"), ("no_capacity", "r1b"), ("no_capacity", "r1c"), ("quota", "r1d"), ("unclear", "r1e"),
    ]  # fmt: skip
    assert unclear.rungs[1].words == "InsufficientInstanceCapacity in r1b"
    assert "not clear (connection cut)" in unclear.why
    made = room.journal.machines()[0]
    room.clock.t_s += 30
    at = room.clock.now()
    room.seen = replace(room.seen, instances={"aws": Fresh((instance(made, id="i-1"),), at)})
    room.reconciler.tick()
    await room.settle()
    view = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject=made.name))
    assert (view.slot, view.machine, view.phase, view.target_gpus) == ("h100-1", made.name, "booting", 1)
    assert view.rungs[-1].outcome == "adopted"
    assert len({r.machine for r in view.rungs}) == 5
    assert [row.offer.split("/")[1] for row in view.next_rungs if not row.note] == ["r1e", "r1f"]
    assert all(row.note for row in view.next_rungs if row.offer.split("/")[1] in ("r1a", "r1d"))
    assert view.events[-1].machine == made.name
    whole = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100"))
    assert [r.outcome for r in whole.rungs] == [r.outcome for r in view.rungs]
    assert whole.why == "1 GPU wanted: 0 ready, 1 on their way"
    assert whole.next_rungs == view.next_rungs
    assert {(e.kind, e.machine) for e in whole.events} >= {("phase", made.name), ("target", "")}
    assert {e.pool for e in whole.events} == {"h100"}
    assert whole.events[-1] == view.events[-1], "the newest come last"
    room.journal.put(replace(room.get(made.name), phase=Phase.READY), "phase", "given", NOW)
    assert (await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100"))).next_rungs == [], (
        "nothing is looked for any more"
    )


async def test_why_nothing_is_rented(room: HeadRoom) -> None:
    async def why(subject: str) -> str:
        room.reconciler.tick()
        return (await room.head.call(e.EXPLAIN, s.ExplainQuery(subject=subject))).why

    assert "has no target" in await why("h100-2")
    assert "has no target" in await why("h100")
    room.journal.set_target(Target("h100", 1), "said", NOW)
    room.journal.put(machine(Phase.READY), "phase", "given", NOW)
    assert "no machine is wanted" in await why("h100-2")
    room.journal.set_target(Target("h100", 3), "said", NOW)
    room.journal.set_cooldown(Cooldown(CooldownKey("pool:h100"), NOW + timedelta(minutes=5), "3 machines failed"), NOW)
    assert "2 GPUs of the pool missing, and nothing is rented for it: no new machines" in await why("h100-2")
    assert "3 machines failed" in await why("h100")
    room.journal.lift_cooldowns([CooldownKey("pool:h100")])
    assert f"is about to be asked for {OFFER.key}" in await why("h100-2"), "the tick has written the machine down"
    await room.settle()


async def test_why_a_slot_of_the_queue_has_no_machine(room: HeadRoom) -> None:
    async def why() -> str:
        room.reconciler.tick()
        return (await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100-2"))).why

    room.pool = replace(room.pool, from_queue=True)
    assert "has no target" not in await why()
    assert "when Slurm gives it to a job" in await why()
    off = SlurmNode("h100-2", "239.192.0.2", frozenset({"IDLE", "DRAIN"}), reason="broken rack")
    room.seen = replace(room.seen, slurm=Fresh(slurm(off), room.clock.now()))
    assert "broken rack" in await why()


async def test_a_gone_machine_names_who_has_its_slot_now(room: HeadRoom) -> None:
    old = room.journal.put(machine(Phase.GONE, gone_at=NOW, failure="did not boot"), "failure", "gone", NOW)
    new = machine(Phase.BOOTING, name=MachineName("lab-h100-1-zzzzzz"), instance_id="i-2")
    room.journal.put(new, "phase", "given", NOW)
    view = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject=old.name))
    assert (view.machine, view.phase) == (old.name, "gone")
    assert "did not boot" in view.why
    assert f"went on with {new.name}" in view.why
    assert (await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100-1"))).machine == new.name


async def test_unknown_names_are_answered_with_near_ones(room: HeadRoom) -> None:
    with pytest.raises(Unknown) as caught:
        await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="h10-1"))
    assert "h100-1" in caught.value.cure
    with pytest.raises(Unknown) as caught:
        await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="zzz"))
    assert "h100" in caught.value.cure
    with pytest.raises(Unknown):
        await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100-9"))  # the pool has eight slots


async def test_an_unfit_node_is_diagnosed(room: HeadRoom) -> None:
    """Slurm's reason, what the agent reports, the tailnet, slurmd's log, what follows, and what to do."""
    m = machine(Phase.READY, tailnet_id=f"n-{machine(Phase.READY).name}")
    room.journal.put(m, "phase", "given", NOW)
    agent = room.agent
    room.slurm.set(node(m, "IDLE"))
    await look_around(room, m)
    room.journal.note(replace(room.get(m.name), heartbeat_at=room.clock.now()))
    told = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject=m.slot))
    assert told.health is not None
    assert (told.health.unfit, told.health.tailnet, agent.asked) == ("", "online", [])
    drained = node(m, "IDLE", "DRAIN", reason="Kill task failed", reason_by="root", reason_at=NOW)
    room.slurm.set(drained)
    agent.text = "error: could not kill step\n"
    await look_around(room, m)
    room.journal.note(replace(room.get(m.name), heartbeat_at=room.clock.now()))
    told = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject=m.slot))
    health = told.health
    assert health is not None
    assert (health.unfit, health.slurm_reason, health.slurm_reason_by) == ("drained", "Kill task failed", "root")
    assert health.log == ["error: could not kill step"]
    assert "Kill task failed" in told.why
    assert health.next.startswith("meshd replaces it") or "no target" in health.next
    nodes = await room.head.call(e.NODES)
    assert [(row.unfit, row.slurm_reason) for row in nodes.nodes] == [("drained", "Kill task failed")]
    status = await room.head.call(e.STATUS)
    assert [(pool.ready_gpus, pool.unfit_gpus, pool.unfit) for pool in status.pools] == [(0, 1, {"drained": 1})]


async def test_a_slot_whose_machine_is_ending_has_a_machine(room: HeadRoom) -> None:
    ending = room.journal.put(machine(Phase.TERMINATING), "phase", "given", NOW)
    room.reconciler.tick()
    told = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject=ending.slot))
    assert (told.machine, told.phase) == (ending.name, "terminating")
    after = replace(machine(Phase.BOOTING), name=MachineName("lab-h100-1-zzzzzz"), created_at=NOW, instance_id="")
    room.journal.put(after, "phase", "given", NOW)
    told = await room.head.call(e.EXPLAIN, s.ExplainQuery(subject=ending.slot))
    assert (told.machine, told.phase) == (after.name, "booting")
    assert ending.name in told.why
