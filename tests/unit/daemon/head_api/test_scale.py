"""Targets and plans: `scale`, `plan`, and what they say beforehand."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.faults import NotReady
from meshd.codes import ProblemCode, RefusalCode, WarningCode
from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Target
from meshd.model.machine import Phase
from meshd.model.observed import Fresh
from meshd.provider_api import PriceSource
from tests.codes import refused
from tests.head_room import ROOT, HeadRoom
from tests.unit.daemon.munge_lab import MungeLab as MungeLab
from tests.unit.worlds import NOW, OFFER, around, machine, snapshot


async def test_scale_knows_of_a_key_that_has_just_died(room: HeadRoom) -> None:
    """Nothing is rented with it, and who asks is told at once."""
    room.dead_key = "the auth key k1 is expired or revoked"
    answer = await room.head.call(e.SCALE, s.ScaleRequest(gpus=2), ROOT)
    assert answer.plan.steps == []
    assert [finding.code for finding in answer.findings] == [WarningCode.AUTH_KEY_DEAD]
    assert room.journal.machines() == []


async def test_scale_journals_the_target_and_lifts_the_cooldowns_of_the_pool(room: HeadRoom) -> None:
    for key in (
        CooldownKey("pool:h100"),
        CooldownKey("pool:h100@aws/r1"),
        CooldownKey("pool:h100x"),
        CooldownKey("pool:h100x@aws"),
        CooldownKey("provider:aws"),
    ):
        room.journal.set_cooldown(Cooldown(key, NOW + timedelta(hours=1), "why"), NOW)
    answer = await room.head.call(e.SCALE, s.ScaleRequest(gpus=2), ROOT)
    assert answer.target_id is not None
    assert [row.action for row in answer.plan.steps] == ["request_machine"] * 2
    assert room.journal.targets()["h100"].gpus == 2
    assert not room.journal.targets()["h100"].spread
    assert not {CooldownKey("pool:h100"), CooldownKey("pool:h100@aws/r1")} & set(room.journal.cooldowns(NOW))
    assert {CooldownKey("pool:h100x"), CooldownKey("pool:h100x@aws")} <= set(room.journal.cooldowns(NOW)), (
        "another pool's breaker stays"
    )
    await room.head.call(e.SCALE, s.ScaleRequest(gpus=2, spread=True), ROOT)
    assert room.journal.targets()["h100"].spread


async def test_a_dry_run_changes_nothing(room: HeadRoom) -> None:
    before = room.journal.last_event_id()
    answer = await room.head.call(e.SCALE, s.ScaleRequest(gpus=2, dry_run=True), ROOT)
    assert (answer.target_id, len(answer.plan.steps)) == (None, 2)
    assert room.journal.last_event_id() == before
    assert not room.journal.targets()


async def test_a_look_starts_no_step(room: HeadRoom) -> None:
    """The target is set and no tick has come yet: whatever is only looked at leaves it so."""
    room.journal.set_target(Target("h100", 2), "said", NOW)
    before, last = room.journal.last_event_id(), room.reconciler.last
    dry_run = await room.head.call(e.SCALE, s.ScaleRequest(gpus=2, dry_run=True), ROOT)
    plan = await room.head.call(e.PLAN)
    preview = await room.head.call(e.PREVIEW, s.ScaleRequest(gpus=2))
    await room.head.call(e.OFFERS, s.OffersQuery(refresh=True))
    assert [answer.adds for answer in (dry_run.plan, plan, preview)] == [2, 2, 2]
    assert (room.journal.machines(), room.journal.last_event_id()) == ([], before)
    assert (room.cloud.launched, room.executor.in_flight) == ([], 0)
    assert room.reconciler.last is last


async def test_an_impossible_target_is_refused(room: HeadRoom) -> None:
    with refused(RefusalCode.NO_ROOM):
        await room.head.call(e.SCALE, s.ScaleRequest(gpus=9), ROOT)
    with refused(RefusalCode.NO_SUCH_POOL):
        await room.head.call(e.SCALE, s.ScaleRequest(gpus=1, pool="a100"), ROOT)
    with refused(RefusalCode.OUTSIDE_OF_POOL):
        await room.head.call(e.SCALE, s.ScaleRequest(gpus=1, provider="gce"), ROOT)
    assert not room.journal.targets()


async def test_a_machine_keeps_the_price_that_it_was_rented_with(room: HeadRoom) -> None:
    old = replace(OFFER, price_as_of=NOW - timedelta(days=40), price_source=PriceSource.SHIPPED)
    room.pool = replace(room.pool, max_usd_per_gpu_hour=3.0)
    room.seen = snapshot(offers={"aws": Fresh((old,), NOW)})
    room.reconciler.tick()
    answer = await room.head.call(e.SCALE, s.ScaleRequest(gpus=1), ROOT)
    (finding,) = answer.findings
    assert finding.code == WarningCode.PRICES_STALE
    assert "2026-01-20" in finding.text and "meshctl prices refresh aws" in finding.cure
    room.reconciler.tick()
    await room.settle()
    (rented,) = room.journal.machines()
    requested = room.journal.events(-1, 100, rented.name)[0]
    assert requested.text.endswith("; 2 USD/h, a price of 2026-01-20")

    room.journal.put(replace(rented, phase=Phase.BOOTING, instance_id="i-1", launched_at=NOW), "phase", "given", NOW)
    dearer = replace(OFFER, usd_per_hour=4.0, price_as_of=NOW)
    room.seen = snapshot(offers={"aws": Fresh((dearer,), NOW)})
    room.reconciler.tick()
    room.clock.t_s += 3600
    (row,) = (await room.head.call(e.NODES)).nodes
    status = await room.head.call(e.STATUS)
    assert (row.usd_per_hour, status.spend.usd_per_hour) == (2.0, 2.0)
    assert status.spend.usd_so_far == pytest.approx(2.0, rel=0.01)
    assert [p.severity for p in status.problems if p.code == ProblemCode.PRICES_STALE] == ["warning"]


async def test_before_the_first_tick_scale_is_not_ready(tmp_path: Path) -> None:
    early = HeadRoom(tmp_path)
    with pytest.raises(NotReady):
        await early.head.call(e.SCALE, s.ScaleRequest(gpus=1), ROOT)
    assert (await early.head.call(e.STATUS)).tick_at is None
    early.journal.close()


async def test_scale_sees_a_job_that_began_since_slurm_was_read_last(room: HeadRoom) -> None:
    m = room.journal.put(machine(Phase.READY), "phase", "given", NOW)
    room.seen = around(m, "IDLE")
    room.reconciler.tick()
    room.next = around(m, "ALLOCATED", jobs={m.slot: "7"})
    answer = await room.head.call(e.SCALE, s.ScaleRequest(gpus=0), ROOT)
    assert [(one.slot, one.jobs) for one in answer.waiting_for_jobs] == [(m.slot, ["7"])]


async def test_a_total_limit_that_is_too_low_is_a_warning_before_anything_is_rented(room: HeadRoom) -> None:
    answer = await room.head.call(e.SCALE, s.ScaleRequest(gpus=4, max_usd_per_hour=5.0, dry_run=True), ROOT)
    assert answer.plan.adds == 2
    assert [(finding.code, finding.subject) for finding in answer.findings] == [(WarningCode.LIMIT_IN_ALL, "h100")]


async def test_more_gpus_alone_keep_the_options_and_status_shows_them(room: HeadRoom) -> None:
    first = await room.head.call(e.SCALE, s.ScaleRequest(gpus=1, spread=True, max_usd_per_gpu_hour=9), ROOT)
    assert first.options == ["--spread", "--max-price 9"]
    after = await room.head.call(e.SCALE, s.ScaleRequest(gpus=2), ROOT)
    target = room.journal.targets()["h100"]
    assert (target.gpus, target.spread, target.max_usd_per_gpu_hour) == (2, True, 9)
    (pool,) = (await room.head.call(e.STATUS)).pools
    assert pool.options == after.options == first.options
    assert (await room.head.call(e.SCALE, s.ScaleRequest(gpus=2, reset=True, dry_run=True), ROOT)).options == []
    await room.head.call(e.SCALE, s.ScaleRequest(gpus=2, spread=False, max_usd_per_gpu_hour=None), ROOT)
    assert (await room.head.call(e.STATUS)).pools[0].options == []
