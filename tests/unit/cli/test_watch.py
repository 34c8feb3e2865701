from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meshd.api.schema import NodeRow, PlanView, PoolView, ProblemView, ScaleAnswer, StatusView
from meshd.cli.watch import Outcome, judge

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(seconds=5)


def answer(before: int, gpus: int, **changes: Any) -> ScaleAnswer:
    return ScaleAnswer(pool="a100", gpus_before=before, gpus=gpus, target_id=7, at=NOW, plan=PlanView(), **changes)


def status(*problems: ProblemView, tick_at: datetime | None = LATER, target_id: int | None = 7) -> StatusView:
    pool = PoolView(name="a100", partition="a100", target_id=target_id, target_gpus=3)
    return StatusView(cluster="lab", version="1", at=LATER, tick_at=tick_at, pools=[pool], problems=list(problems))


def node(index: int, phase: str, *, gpus: int = 4, **changes: Any) -> NodeRow:
    return NodeRow(
        machine=f"m-{index}",
        slot=f"a100-{index}",
        pool="a100",
        provider="aws",
        phase=phase,
        since=NOW,
        gpus=gpus,
        **changes,
    )


BLOCK = ProblemView(severity="error", text="no quota", pool="a100", blocking=True)
OTHER = ProblemView(severity="error", text="no quota", pool="h100", blocking=True)
PASSING = ProblemView(severity="warning", text="one failed, the next is tried", pool="a100")


@pytest.mark.parametrize(
    ("before", "gpus", "nodes", "outcome"),
    [
        (0, 8, [node(1, "ready"), node(2, "ready")], Outcome.REACHED),
        (0, 8, [node(1, "ready"), node(2, "testing")], Outcome.WAITING),
        (0, 8, [node(1, "ready"), node(2, "ready"), node(3, "booting")], Outcome.WAITING),
        (0, 5, [node(1, "ready"), node(2, "ready")], Outcome.REACHED),
        (0, 8, [node(1, "ready"), node(2, "ready", failure="gpu fell off")], Outcome.WAITING),
        (0, 8, [node(1, "ready"), node(2, "ready"), node(3, "terminating")], Outcome.REACHED),
        (0, 2, [node(1, "ready", gpus=0), node(2, "ready", gpus=0)], Outcome.REACHED),
        (8, 3, [node(1, "ready"), node(2, "ready")], Outcome.WAITING),
        (8, 3, [node(1, "ready"), node(2, "draining")], Outcome.WAITING),
        (8, 3, [node(1, "ready"), node(2, "terminating")], Outcome.WAITING),
        (8, 3, [node(1, "ready")], Outcome.REACHED),
        (8, 0, [], Outcome.REACHED),
        (8, 0, [node(1, "lost")], Outcome.GAVE_UP),
        (8, 0, [node(9, "lost")], Outcome.REACHED),
        (0, 0, [], Outcome.REACHED),
    ],
)
def test_the_target_is_judged_by_the_machines(before: int, gpus: int, nodes: list[NodeRow], outcome: Outcome) -> None:
    assert judge(answer(before, gpus), status(), nodes, frozenset({"m-9"})).outcome is outcome


def test_nothing_is_judged_before_a_tick_has_seen_the_request() -> None:
    ready = [node(1, "ready")]
    for early in (None, NOW - timedelta(seconds=1)):
        assert judge(answer(0, 4), status(BLOCK, tick_at=early), ready, frozenset()).outcome is Outcome.WAITING


def test_only_what_blocks_this_pool_ends_the_waiting() -> None:
    for problems, outcome in (((BLOCK,), Outcome.GAVE_UP), ((OTHER, PASSING), Outcome.WAITING)):
        assert judge(answer(0, 4), status(*problems), [], frozenset()).outcome is outcome


def test_a_blocked_pool_that_is_there_is_there() -> None:
    assert judge(answer(0, 4), status(BLOCK), [node(1, "ready")], frozenset()).outcome is Outcome.REACHED


def test_another_target_or_no_pool() -> None:
    assert judge(answer(0, 4), status(target_id=8), [], frozenset()).outcome is Outcome.SUPERSEDED
    gone = status().model_copy(update={"pools": []})
    assert judge(answer(0, 4), gone, [], frozenset()).outcome is Outcome.SUPERSEDED


def test_who_waits_for_which_job_is_told() -> None:
    verdict = judge(answer(8, 4), status(), [node(1, "ready"), node(2, "draining", jobs=["17", "18"])], frozenset())
    assert verdict.reason == "a100-2 waits for job 17, 18"
