from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meshd.api.schema import EventRow, NodeRow, PlanView, PoolView, ProblemView, ScaleAnswer, StatusView
from meshd.cli.target_wait import Attempts, PoolState, WaitOutcome, assess, gained

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


@pytest.mark.parametrize(
    ("before", "gpus", "nodes", "part"),
    [
        (0, 8, [], False),
        (0, 8, [node(1, "requested"), node(2, "launching")], False),
        (0, 8, [node(1, "booting"), node(2, "requested")], True),
        (0, 8, [node(1, "ready")], True),
        (4, 8, [node(1, "ready")], False),
        (4, 8, [node(1, "ready"), node(2, "terminating")], False),
        (8, 0, [node(1, "ready"), node(2, "draining")], True),
        (8, 0, [node(1, "ready"), node(2, "ready")], False),
    ],
)
def test_what_is_rented_is_a_part_of_the_change(before: int, gpus: int, nodes: list[NodeRow], part: bool) -> None:
    assert gained(answer(before, gpus), nodes) is part


def test_it_waits_until_a_tick_has_seen_the_request() -> None:
    ready = [node(1, "ready")]
    for early in (None, NOW - timedelta(seconds=1)):
        assert (
            assess(answer(0, 4), PoolState(ready, status(BLOCK, tick_at=early)), frozenset()).outcome
            is WaitOutcome.WAITING
        )


def test_only_a_problem_that_blocks_this_pool_ends_the_wait() -> None:
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


A, B = "aws/us-east-1a/p5.48xlarge", "gce/us-central1-b/a3-highgpu-8g"


def event(kind: str, text: str = "", machine: str = "lab-h100-3-aaaaaa", **fields: str) -> EventRow:
    return EventRow(id=1, at=NOW, kind=kind, text=text, machine=machine, fields=dict(fields))


def refused(kind: str = "no_capacity", slot: str = "h100-3", offer: str = A) -> EventRow:
    text = "gone: nothing was rented: aws launch: Insufficient..."
    return event("failure", text, phase="gone", slot=slot, offer=offer, refusal=kind)


def requested(slot: str = "h100-3", offer: str = B) -> EventRow:
    return event("phase", "requested: wanted", phase="requested", slot=slot, offer=offer)


def test_a_refusal_shares_a_line_with_the_next_attempt() -> None:
    attempts = Attempts()
    assert attempts.lines([requested(offer=A)]) == [], "the first offer is nobody's replacement"
    assert attempts.lines([refused(), requested()]) == [f"h100-3: no capacity at {A}, trying {B}"]
    assert attempts.lines([refused("quota_exceeded"), requested()]) == [f"h100-3: over the quota at {A}, trying {B}"]
    assert attempts.lines([refused("invalid_request"), requested()]) == [f"h100-3: refused by {A}, trying {B}"]
    assert attempts.lines([]) == []


def test_the_next_attempt_may_come_one_round_later() -> None:
    attempts = Attempts()
    assert attempts.lines([refused(), requested(slot="h100-4")]) == []
    assert attempts.lines([requested()]) == [f"h100-3: no capacity at {A}, trying {B}"]


def test_without_a_next_attempt_the_clouds_message_is_printed_once() -> None:
    attempts = Attempts()
    assert attempts.lines([refused()]) == []
    assert attempts.lines([]) == ["h100-3: gone: nothing was rented: aws launch: Insufficient..."]
    assert attempts.lines([requested()]) == []


def test_every_slot_has_attempts_of_its_own() -> None:
    attempts = Attempts()
    events = [refused(), refused(slot="h100-4"), requested(slot="h100-4"), requested(offer="x/y/z")]
    assert attempts.lines(events) == [
        f"h100-4: no capacity at {A}, trying {B}", f"h100-3: no capacity at {A}, trying x/y/z",
    ]  # fmt: skip


def test_other_events() -> None:
    attempts = Attempts()
    (line,) = attempts.lines([event("unclear", "cut", slot="h100-3", offer=A)])
    assert line.startswith("h100-3: ") and A in line
    boot = event("failure", "terminating: did not boot", slot="h100-3", offer=A, refusal="", phase="terminating")
    assert attempts.lines([boot]) == ["lab-h100-3-aaaaaa: terminating: did not boot"]
    assert attempts.lines([event("problem", "no offer", machine="")]) == ["meshd: no offer"]
    assert attempts.lines([event("phase", "booting", phase="booting", slot="h100-3", offer=A)]) == []
