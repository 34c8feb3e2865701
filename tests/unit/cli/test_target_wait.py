from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meshd.api.schema import NodeRow, PlanView, PoolView, ProblemView, ScaleAnswer, StatusView
from meshd.cli.target_wait import PoolState, WaitOutcome, assess

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
        (0, 8, [node(1, "ready"), node(2, "ready")], WaitOutcome.REACHED),
        (0, 8, [node(1, "ready"), node(2, "testing")], WaitOutcome.WAITING),
        (0, 8, [node(1, "ready"), node(2, "ready"), node(3, "booting")], WaitOutcome.WAITING),
        (0, 5, [node(1, "ready"), node(2, "ready")], WaitOutcome.REACHED),
        (0, 8, [node(1, "ready"), node(2, "ready", failure="gpu fell off")], WaitOutcome.WAITING),
        (0, 8, [node(1, "ready"), node(2, "ready"), node(3, "terminating")], WaitOutcome.REACHED),
        (0, 2, [node(1, "ready", gpus=0), node(2, "ready", gpus=0)], WaitOutcome.REACHED),
        (8, 3, [node(1, "ready"), node(2, "ready")], WaitOutcome.WAITING),
        (8, 3, [node(1, "ready"), node(2, "draining")], WaitOutcome.WAITING),
        (8, 3, [node(1, "ready"), node(2, "terminating")], WaitOutcome.WAITING),
        (8, 3, [node(1, "ready")], WaitOutcome.REACHED),
        (8, 0, [], WaitOutcome.REACHED),
        (8, 0, [node(1, "lost")], WaitOutcome.GAVE_UP),
        (8, 0, [node(9, "lost")], WaitOutcome.REACHED),
        (0, 0, [], WaitOutcome.REACHED),
    ],
)
def test_the_machines_decide_whether_the_target_is_reached(
    before: int, gpus: int, nodes: list[NodeRow], outcome: WaitOutcome
) -> None:
    assert assess(answer(before, gpus), PoolState(nodes, status()), frozenset({"m-9"})).outcome is outcome


def test_nothing_is_judged_before_a_tick_has_seen_the_request() -> None:
    ready = [node(1, "ready")]
    for early in (None, NOW - timedelta(seconds=1)):
        assert (
            assess(answer(0, 4), PoolState(ready, status(BLOCK, tick_at=early)), frozenset()).outcome
            is WaitOutcome.WAITING
        )


def test_only_what_blocks_this_pool_ends_the_waiting() -> None:
    for problems, outcome in (((BLOCK,), WaitOutcome.GAVE_UP), ((OTHER, PASSING), WaitOutcome.WAITING)):
        assert assess(answer(0, 4), PoolState([], status(*problems)), frozenset()).outcome is outcome


def test_a_pool_that_reached_its_target_is_not_blocked() -> None:
    assert (
        assess(answer(0, 4), PoolState([node(1, "ready")], status(BLOCK)), frozenset()).outcome is WaitOutcome.REACHED
    )


def test_another_target_or_no_pool() -> None:
    assert assess(answer(0, 4), PoolState([], status(target_id=8)), frozenset()).outcome is WaitOutcome.SUPERSEDED
    gone = status().model_copy(update={"pools": []})
    assert assess(answer(0, 4), PoolState([], gone), frozenset()).outcome is WaitOutcome.SUPERSEDED


def test_the_reason_names_the_node_and_its_jobs() -> None:
    found = assess(
        answer(8, 4), PoolState([node(1, "ready"), node(2, "draining", jobs=["17", "18"])], status()), frozenset()
    )
    assert "a100-2" in found.reason and "17, 18" in found.reason
