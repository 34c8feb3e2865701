"""Slurm's queue, as the head API shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from meshd.api import schema as s
from meshd.config import PoolSettings
from meshd.daemon.head_api.jobs import JobService
from meshd.model.observed import Fresh, SlurmJob, SlurmView, Unavailable
from meshd.plan.waiting import Wait, WaitingJob
from tests.live import live_settings

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOBS = (
    SlurmJob("10", "bob", "a100", "PENDING", state_reason="Resources", node_count=2, gpus=8),
    SlurmJob("9", "alice", "a100", "PENDING", state_reason="Priority"),
    SlurmJob("11", "alice", "a100", "CONFIGURING", nodes=("a100-1", "a100-2"), gpus=8, account="lab"),
    SlurmJob("3", "alice", "a100,debug", "RUNNING", nodes=("a100-3",), run_s=60.0),
    SlurmJob("4", "carol", "elsewhere", "RUNNING", nodes=("x1",), run_s=60.0),
    SlurmJob("5", "carol", "desk", "RUNNING", nodes=("tower",), run_s=60.0),
)
WAITS = WaitingJob("11", "alice", "a100", 2, 1, Wait.BOOT, None, "1 of 2 machines boots", True)


def service(seen: Any) -> JobService:
    state = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: NOW), waiting=lambda: (WAITS,),
        controller=SimpleNamespace(last=seen and SimpleNamespace(snapshot=SimpleNamespace(slurm=seen))),
    )  # fmt: skip
    head = SimpleNamespace(row=lambda _view: s.HeadNodeRow(name="tower", partitions=["desk"]))
    return JobService(cast("Any", state), live_settings(pools={"a100": PoolSettings(gpu="a100")}), cast("Any", head))


async def test_those_that_run_come_first_each_by_id() -> None:
    view = await service(Fresh(SlurmView("24.11", {}, JOBS), NOW)).jobs(s.JobsQuery())
    assert [row.job for row in view.jobs] == ["3", "5", "11", "9", "10"] and view.left_out == 0
    rows = {row.job: row for row in view.jobs}
    assert (rows["3"].pool, rows["5"].pool, rows["5"].partition) == ("a100", "", "desk")
    assert (rows["11"].reason, rows["10"].reason, rows["3"].reason) == ("1 of 2 machines boots", "Resources", "")
    assert (rows["11"].node_count, rows["10"].node_count, rows["11"].account) == (2, 2, "lab")


async def test_no_more_than_asked_for() -> None:
    view = await service(Fresh(SlurmView("24.11", {}, JOBS), NOW)).jobs(s.JobsQuery(limit=2))
    assert [row.job for row in view.jobs] == ["3", "5"] and view.left_out == 3


@pytest.mark.parametrize("seen", [None, Unavailable("slurmctld is away", NOW)])
async def test_unknown_is_not_empty(seen: Any) -> None:
    view = await service(seen).jobs(s.JobsQuery())
    assert view.jobs == [] and view.read_at is None
