"""`GET /v1/cost`, the problems of the budget, and which jobs had which machines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.faults import Refused
from meshd.codes import EventKind, ProblemCode
from meshd.daemon.money.report import BudgetReporter
from meshd.daemon.money.uses import COUNTED_AFTER, JobUses
from meshd.errors import StoreError
from meshd.model.budget import MICROS, BudgetLimits, Spent
from meshd.model.ledger import JobUse
from meshd.model.machine import Machine, Phase
from meshd.plan.ledger import Rounding, budget_of
from meshd.provider_api import Offer
from meshd.store.ledger import Ledger
from tests.head_room import HeadRoom
from tests.unit.worlds import NOW, OFFER, machine

HOUR = timedelta(hours=1)
EIGHT = replace(OFFER, gpus=8, usd_per_hour=8.0, vcpus=64)


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[HeadRoom]:
    found = HeadRoom(tmp_path)
    yield found
    found.journal.close()


def had(room: HeadRoom, index: int, hours: float, offer: Offer = EIGHT) -> Machine:
    """A machine that was rented so long ago, and is gone now."""
    now = room.clock.now()
    m = machine(
        Phase.GONE, index=index, offer=offer, launched_at=now - hours * HOUR, gone_at=now, terminate_called_at=now
    )
    return room.journal.put(m, EventKind.PHASE, "", now)


def use(room: HeadRoom, job: str, index: int, begin_h: float, end_h: float | None, gpus: int, **more: Any) -> JobUse:
    now = room.clock.now()
    until = None if end_h is None else now - end_h * HOUR
    plain = JobUse(job, f"h100-{index}", "ann", "lab", "train", now - begin_h * HOUR, until, gpus, 8 * gpus)
    return replace(plain, **more)


async def cost(room: HeadRoom, **query: Any) -> s.CostView:
    return await room.head.call(e.COST, s.CostQuery(since=room.clock.now() - 10 * HOUR, **query))


async def test_what_each_user_had_and_what_nobody_had(room: HeadRoom) -> None:
    had(room, 1, 4)
    room.records.uses = (
        use(room, "7", 1, 4, 2, 8),
        use(room, "8", 1, 2, 1, 2, user="bob", account="ops"),
        use(room, "9", 1, 2, 1, 4),
    )
    found = await cost(room, by="user")
    assert [(r.kind, r.key, r.micro_usd, r.gpu_hours) for r in found.rows] == [
        ("one", "ann", 20 * MICROS, 20.0), ("idle", "", 10 * MICROS, 10.0), ("one", "bob", 2 * MICROS, 2.0)
    ]  # fmt: skip
    assert (found.micro_usd, found.usd, found.jobs_by) == (32 * MICROS, 32.0, "accounting")
    jobs = await cost(room, by="job")
    assert {(r.key, r.usd, r.name, r.account) for r in jobs.rows if r.kind == "one"} == {
        ("7", 16.0, "train", "lab"), ("8", 2.0, "train", "ops"), ("9", 4.0, "train", "lab")
    }  # fmt: skip


async def test_more_than_there_is_is_shared(room: HeadRoom) -> None:
    """Jobs that Slurm lets share their GPUs."""
    had(room, 1, 1)
    room.records.uses = (use(room, "1", 1, 1, 0, 8), use(room, "2", 1, 1, 0, 8))
    found = await cost(room, by="job")
    assert [(r.key, r.usd) for r in found.rows] == [("1", 4.0), ("2", 4.0)]


async def test_rows_by_pool_provider_machine_and_day_add_up(room: HeadRoom) -> None:
    first, second = had(room, 1, 3), had(room, 2, 1.5, OFFER)
    for by, keys in (("pool", ["h100"]), ("provider", ["aws"]), ("machine", [first.name, second.name])):
        found = await cost(room, by=by)
        assert [row.key for row in found.rows] == keys
        assert sum(row.micro_usd for row in found.rows) == found.micro_usd == 27 * MICROS
    room.clock.t_s += timedelta(hours=20).total_seconds()
    had(room, 3, 14, OFFER)
    days = await room.head.call(e.COST, s.CostQuery(by="day", since=room.clock.now() - timedelta(days=3)))
    assert [row.key for row in days.rows] == sorted(row.key for row in days.rows)
    assert len(days.rows) == 2
    assert days.micro_usd == 55 * MICROS


async def test_what_a_cloud_has_rounded_up_counts_at_once(room: HeadRoom) -> None:
    """As for Lambda's minutes: at once when the machine is gone, not when its minute is over."""
    now = room.clock.now()
    room.ledger = Ledger(room.journal, {"aws": Rounding(3600.0)}, room.clock.now)
    gone = machine(Phase.GONE, launched_at=now - timedelta(minutes=10), gone_at=now)
    room.journal.put(gone, EventKind.PHASE, "", now)
    assert [(await cost(room, by=by)).usd for by in ("machine", "job")] == [2.0, 2.0]
    before = await cost(room, until=now - timedelta(minutes=5))
    assert before.usd == pytest.approx(1 / 6, abs=1e-5)


async def test_rows_beyond_the_limit_are_summed_up(room: HeadRoom) -> None:
    for index in range(1, 6):
        had(room, index, index, OFFER)
    found = await cost(room, by="machine", limit=2)
    assert [(r.kind, r.usd, r.machines) for r in found.rows] == [("one", 10.0, 1), ("one", 8.0, 1), ("others", 12.0, 3)]


async def test_a_time_that_ends_before_it_begins_is_refused(room: HeadRoom) -> None:
    with pytest.raises(Refused):
        await cost(room, until=room.clock.now() - 11 * HOUR)


async def test_a_job_that_is_seen_no_more_has_ended(room: HeadRoom) -> None:
    room.journal.put(machine(Phase.READY, launched_at=room.clock.now() - HOUR), EventKind.PHASE, "", NOW)
    running = use(room, "7", 1, 0.5, None, 1)
    room.records.uses = (running,)
    uses = JobUses(room.ledger, room.records, room.records, room.clock)
    await uses.reconcile()
    assert room.ledger.open_uses() == [running]
    seen_at = room.clock.now()
    room.clock.t_s += timedelta(seconds=20).total_seconds()
    room.records.uses = ()
    await uses.reconcile()
    assert room.ledger.open_uses() == []
    (ended,) = room.ledger.uses(NOW - 10 * HOUR, NOW + 10 * HOUR)
    assert ended.until == seen_at


async def test_a_full_disk_keeps_nobody_from_asking(room: HeadRoom) -> None:
    had(room, 1, 4)
    room.records.uses = (use(room, "7", 1, 4, 2, 8),)
    before = await cost(room, by="user")
    read_at = room.clock.now()
    assert before.jobs_read_at == read_at

    with room.journal.writing() as db:
        db.execute("PRAGMA max_page_count = 1")  # as a disk on which the file cannot grow
    room.records.uses = tuple(use(room, f"{number}", 1, 2, 0, 8, name="n" * 200) for number in range(8, 208))
    room.clock.t_s += 60
    with pytest.raises(StoreError, match="full"):
        await JobUses(room.ledger, room.records, room.records, room.clock).reconcile()
    told = await cost(room, by="user")
    assert ([(r.key, r.usd) for r in told.rows], told.jobs_read_at) == ([(r.key, r.usd) for r in before.rows], read_at)

    with room.journal.writing() as db:
        db.execute("PRAGMA max_page_count = 100000")
    assert (await cost(room, by="job")).jobs_read_at == room.clock.now()
    assert len(room.ledger.uses(NOW - 10 * HOUR, NOW + 10 * HOUR)) == 201


async def test_nodes_that_are_not_ours_are_left_out(room: HeadRoom) -> None:
    had(room, 1, 1)
    room.records.uses = (use(room, "7", 1, 1, 0, 8), use(room, "8", 77, 1, 0, 8))
    await cost(room, by="job")
    assert [one.job for one in room.ledger.uses(NOW - 10 * HOUR, NOW + 10 * HOUR)] == ["7"]


async def test_the_counters_of_jobs_count_each_hour_once(room: HeadRoom) -> None:
    room.journal.put(machine(Phase.READY, offer=EIGHT, launched_at=room.clock.now()), EventKind.PHASE, "", NOW)
    room.records.uses = (use(room, "7", 1, 0, None, 4),)
    uses = JobUses(room.ledger, room.records, room.records, room.clock)
    await uses.reconcile()
    for _ in range(60):
        room.clock.t_s += timedelta(minutes=1).total_seconds()
        await uses.reconcile()
    room.clock.t_s += COUNTED_AFTER.total_seconds()
    uses = JobUses(room.ledger, room.records, room.records, room.clock)  # as after a restart
    await uses.reconcile()
    found = room.ledger.job_costs()
    assert found == {("h100", "lab", "ann"): pytest.approx(4 * MICROS, abs=100)}, "each count rounds down"


@pytest.mark.parametrize(
    ("spent", "kill_at", "found"),
    [
        (79, None, []),
        (80, None, [(ProblemCode.BUDGET_WARNING, "warning")]),
        (100, None, [(ProblemCode.BUDGET_WARNING, "error")]),
        (120, 1.2, [(ProblemCode.BUDGET_KILL, "error")]),
    ],
)
async def test_the_problems_of_a_budget(
    room: HeadRoom, spent: int, kill_at: float | None, found: list[tuple[ProblemCode, str]]
) -> None:
    limits = {"": BudgetLimits(usd_per_day=1.0, kill_at=kill_at)}
    micros = spent * 10_000
    budget = budget_of(limits, {"": Spent(micros, micros)}, (), {}, room.clock.now())
    desired = replace(room.desired(), budget=budget)
    problems = list(BudgetReporter(lambda: desired, lambda: room.seen, room.clock).problems())
    assert [(one.code, one.severity) for one in problems] == found


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        (BudgetLimits(usd_per_hour=1.9), ["h100"]),
        (BudgetLimits(usd_per_hour=2.0), []),
        (BudgetLimits(usd_per_month=0.3), ["h100"]),
        (BudgetLimits(usd_per_month=0.34), []),
    ],
)
async def test_a_budget_that_does_not_pay_for_one_machine(
    room: HeadRoom, limits: BudgetLimits, found: list[str]
) -> None:
    desired = replace(room.desired(), budget=budget_of({"": limits}, {}, (), {}, room.clock.now()))
    problems = list(BudgetReporter(lambda: desired, lambda: room.seen, room.clock).problems())
    assert [one.pool for one in problems if one.code == ProblemCode.BUDGET_TOO_SMALL] == found
