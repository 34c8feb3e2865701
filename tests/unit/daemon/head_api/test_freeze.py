"""Who freezes meshd is shown before all else; orders are taken, and say that they wait."""

from __future__ import annotations

from dataclasses import replace

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.codes import DemandCode, ProblemCode, RefusalCode, WarningCode
from meshd.daemon.head_api.metrics import metrics_snapshot
from meshd.daemon.money.report import BudgetReporter
from meshd.model.budget import Budget, BudgetLimits, Spent
from meshd.model.freeze import Freeze
from meshd.model.machine import Phase
from meshd.model.observed import SlurmJob
from meshd.model.plan import OpenSlots, Plan, RefusedDemand
from meshd.plan.waiting import Wait
from tests.codes import refused
from tests.head_room import ROOT, HeadRoom
from tests.unit.daemon.munge_lab import MungeLab as MungeLab
from tests.unit.plan.test_waiting import JOB, waits
from tests.unit.worlds import GONE_DARK, NOW, around, machine, snapshot

FREEZE = Freeze(NOW, "ann", "the cloud lies")


async def freeze(room: HeadRoom) -> s.FreezeAnswer:
    return await room.head.call(e.FREEZE, s.FreezeRequest(reason="the cloud lies"), ROOT)


async def test_it_is_shown_first_and_once(room: HeadRoom) -> None:
    room.seen = snapshot(slurm=GONE_DARK)  # another error
    room.reconciler.tick()
    assert (await room.head.call(e.STATUS)).freeze is None
    first = await freeze(room)
    assert first.frozen and first.changed and first.freeze is not None
    again = await room.head.call(e.FREEZE, s.FreezeRequest(reason="another"), ROOT)
    assert not again.changed and again.freeze == first.freeze
    room.reconciler.tick()
    status = await room.head.call(e.STATUS)
    assert status.freeze == first.freeze
    codes = [problem.code for problem in status.problems]
    assert codes[0] == ProblemCode.FROZEN and len(codes) > 1 and "meshctl thaw" in status.problems[0].cure
    assert (await room.head.call(e.EXPLAIN, s.ExplainQuery(subject="h100"))).freeze == first.freeze
    over = await room.head.call(e.THAW, s.ThawRequest(), ROOT)
    assert not over.frozen and over.changed and over.freeze == first.freeze
    assert not (await room.head.call(e.THAW, s.ThawRequest(), ROOT)).changed
    assert (await room.head.call(e.STATUS)).freeze is None
    assert [one.kind for one in room.journal.events()][-2:] == ["freeze", "thaw"]


async def test_an_order_is_shown_with_its_price_and_carried_out_after_the_thaw(room: HeadRoom) -> None:
    await freeze(room)
    room.reconciler.tick()
    answer = await room.head.call(e.SCALE, s.ScaleRequest(gpus=2), ROOT)
    assert answer.plan.adds == 2 and answer.asks and "frozen" in answer.warnings[0]
    assert answer.plan.findings[0].code == WarningCode.FROZEN
    room.reconciler.tick()
    await room.settle()
    assert room.cloud.launched == [] and (await room.head.call(e.PLAN)).adds == 0
    (short,) = [one for one in room.service.problems() if one.pool == "h100"]
    assert short.code == WarningCode.FROZEN and short.blocking
    await room.head.call(e.THAW, s.ThawRequest(), ROOT)
    for _ in range(3):
        room.reconciler.tick()
        await room.settle()
    assert len(room.cloud.launched) == 2


async def test_a_removal_is_taken_and_says_that_it_waits(room: HeadRoom) -> None:
    m = room.journal.put(machine(Phase.READY), "phase", "given", NOW)
    room.seen = around(m)
    room.reconciler.tick()
    await freeze(room)
    answer = await room.head.call(e.REMOVE, s.RemoveRequest(machine=m.name, force=True), ROOT)
    assert any("frozen" in warning for warning in answer.warnings)
    for _ in range(3):
        room.reconciler.tick()
        await room.settle()
    assert room.cloud.ended == [] and not room.get(m.name).left_slurm
    with refused(RefusalCode.FROZEN):
        await room.head.call(e.PRUNE_IMAGES, s.PruneRequest(), ROOT)


def test_a_kill_that_the_freeze_holds_is_told(room: HeadRoom) -> None:
    budget = Budget({"": BudgetLimits(usd_per_day=1, kill_at=1.0)}, {"": Spent(9_000_000, 9_000_000)}, at=NOW)
    reporter = BudgetReporter(lambda: replace(room.desired(), budget=budget), lambda: room.seen, room.clock)
    (free,) = [one for one in reporter.problems() if one.code == ProblemCode.BUDGET_KILL]
    assert "given back" in free.text and "thaw" not in free.cure
    room.freezes.freeze(FREEZE)
    (held,) = [one for one in reporter.problems() if one.code == ProblemCode.BUDGET_KILL]
    assert held.severity == "error" and "the freeze holds it" in held.text and "meshctl thaw" in held.cure
    desired = room.desired()
    found = metrics_snapshot(
        machines=(), desired=desired, snapshot=room.seen, problems=(), breakers={}, reconfigures=0, steps_in_flight=0,
        ticked_at=None, now=NOW,
    )  # fmt: skip
    assert found.frozen


def test_jobs_say_who_froze_meshd_and_no_time(room: HeadRoom) -> None:
    words, until = FREEZE.words, NOW
    plan = Plan(refused=(RefusedDemand("h100", ("12",), ("h100-1",), DemandCode.FROZEN, words, until),))
    (job,) = waits(plan=plan)
    assert (job.wait, job.until) == (Wait.REFUSED, None) and words in job.comment
    later = SlurmJob("13", "ann", "gpu", "PENDING", (), "Resources", node_count=1)
    (job,) = waits(job=later, plan=Plan(open_slots={"h100": OpenSlots(0, DemandCode.FROZEN, words)}))
    assert job.wait is Wait.REFUSED and words in job.comment
    held = {
        machine(Phase.REQUESTED, index=index).name: "guards.max_launches = 1 in 600 s is reached" for index in (1, 2)
    }
    (job,) = waits(*(machine(Phase.REQUESTED, index=i) for i in (1, 2)), job=JOB, plan=Plan(held_orders=held))
    assert (job.wait, job.until) == (Wait.ORDER, None) and "2 machines wait to be ordered: guards" in job.comment
