"""Single decisions of the munge key's rotation; whole histories are in tests/property/test_munge_rotation.py."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from meshd.errors import IllegalMove
from meshd.munge.rotation import (
    UNSETTLED_MAX_S,
    HeadView,
    MungeFleet,
    MungeRotation,
    MungeStage,
    NodeView,
    begin,
    key_in_force,
    node_state,
    unsettles_slurm,
    waits_for,
)
from meshd.munge.rotation_steps import (
    TRIES_MAX,
    PutNode,
    RestartSlurmd,
    StageHead,
    StageNode,
    SwitchHead,
    SwitchNode,
    SwitchTimings,
    abort,
    decide,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMINGS = SwitchTimings(lead_per_node_s=0.0)
NODE = NodeView("m1", "h100-1", reachable=True, key="old", staged="new", proved=True)
HEAD = HeadView(key="old", staged="new", works=True)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def fleet(*nodes: NodeView, head: HeadView = HEAD) -> MungeFleet:
    return MungeFleet(head, {node.machine: node for node in nodes}, frozenset({"old", "new"}))


def staged() -> MungeRotation:
    return replace(begin("r", "old", NOW, "root"), new="new").moved(MungeStage.STAGE, NOW)


def switching(*nodes: NodeView) -> MungeRotation:
    rotation = decide(staged(), fleet(*nodes), NOW, TIMINGS).rotation
    assert rotation.stage is MungeStage.SWITCH
    return rotation


def test_nothing_is_switched_before_all_have_the_key() -> None:
    lacking = replace(NODE, staged="")
    decision = decide(staged(), fleet(lacking, head=replace(HEAD, staged="")), NOW, TIMINGS)
    assert decision.steps == (StageHead("new"), StageNode("m1", "new"))
    assert decision.rotation.stage is MungeStage.STAGE
    assert "m1 (it has not stored the new key yet)" in decision.rotation.failure
    assert node_state(decision.rotation, lacking) == "waiting"
    for one, words in (
        (replace(NODE, reachable=False), "jobs are on it"),
        (replace(NODE, key=""), "older meshd"),
    ):
        assert words in waits_for(staged(), fleet(one))["m1"]
    for one in (replace(NODE, reachable=False, offline=True), NODE):
        assert waits_for(staged(), fleet(one)) == {}
    assert waits_for(replace(staged(), waived=("m1",)), fleet(lacking)) == {}


def test_all_are_told_of_one_moment() -> None:
    rotation = switching(NODE)
    assert rotation.switch_at == later(2)
    assert rotation.taking_part == ("m1",)
    decision = decide(rotation, fleet(NODE), NOW, TIMINGS)
    assert decision.steps == (SwitchHead("new", later(2)), SwitchNode("m1", "new", later(2)))
    many = [replace(NODE, machine=f"m{number}") for number in range(10_000)]
    large = decide(staged(), fleet(*many[:1000]), NOW, replace(TIMINGS, lead_per_node_s=0.003)).rotation
    assert large.switch_at == later(5), "so many take longer to be told"
    assert decide(staged(), fleet(*many), NOW, replace(TIMINGS, lead_per_node_s=0.003)).rotation.switch_at == later(15)
    assert key_in_force(rotation, "", later(1.9)) == "old"
    assert key_in_force(rotation, "", later(2)) == "new"
    assert key_in_force(rotation, "old", later(3)) == "old", "what the head says counts"
    busy = replace(HEAD, busy=True, moment=later(2))
    assert decide(rotation, fleet(NODE, head=busy), later(3), TIMINGS).rotation == rotation
    changed = replace(HEAD, key="new", moment=later(2))
    assert decide(rotation, fleet(NODE, head=changed), later(2.4), TIMINGS).rotation.stage is MungeStage.VERIFY


def test_taken_back_before_the_moment_nobody_returns_before_the_head_can() -> None:
    rotation = switching(NODE)
    back = abort(rotation, later(0.1), TIMINGS, "root")
    assert (back.stage, back.switch_at) == (MungeStage.RETURN, later(2.1))
    busy = replace(HEAD, busy=True, moment=later(2))
    assert decide(back, fleet(NODE, head=busy), later(1), TIMINGS).steps == ()
    again = decide(back, fleet(NODE, head=busy), later(2.2), TIMINGS)
    assert again.steps == ()
    assert again.rotation.switch_at == later(4.2)
    free = replace(HEAD, key="new", moment=later(2))
    node = replace(NODE, key="new")
    decision = decide(again.rotation, fleet(node, head=free), later(2.4), TIMINGS)
    assert decision.steps == (SwitchHead("old", later(4.2)), SwitchNode("m1", "old", later(4.2)))


def test_a_head_that_is_not_heard_of_is_tried_a_few_times() -> None:
    rotation = switching(NODE)
    for _ in range(TRIES_MAX):
        assert rotation.stage is MungeStage.SWITCH
        assert rotation.switch_at is not None
        after = rotation.switch_at + timedelta(seconds=1)
        rotation = decide(rotation, fleet(NODE), after, TIMINGS).rotation
    assert rotation.stage is MungeStage.RETURN
    assert "the moment passed before the head was told" in rotation.taken_back


def test_after_the_moment_each_must_prove_the_key() -> None:
    rotation = switching(NODE).moved(MungeStage.VERIFY, NOW)
    head = replace(HEAD, key="new")
    late = decide(rotation, fleet(NODE, head=head), later(1), TIMINGS)
    assert late.steps == (PutNode("m1", "new"),)
    about_to = replace(NODE, busy=True)
    assert decide(rotation, fleet(about_to, head=head), later(1), TIMINGS).steps == (), "munged is not restarted twice"
    switched = replace(NODE, key="new", proved=False)
    unproved = decide(rotation, fleet(switched, head=head), later(1), TIMINGS)
    assert unproved.steps == ()
    assert node_state(unproved.rotation, switched) == "switched"
    deaf = decide(rotation, fleet(replace(switched, proved=True, slurmd=False), head=head), later(1), TIMINGS)
    assert deaf.steps == (RestartSlurmd("m1"),)
    proved = replace(switched, proved=True)
    no_head = decide(rotation, fleet(proved, head=replace(head, works=False)), later(1), TIMINGS)
    assert no_head.rotation.stage is MungeStage.VERIFY
    assert "on the head" in no_head.rotation.failure
    done = decide(rotation, fleet(proved, head=head), later(1), TIMINGS).rotation
    assert (done.stage, done.confirmed, done.ended_at) == (MungeStage.DONE, ("m1",), later(1))
    # One that comes back with the old key later is not forgotten.
    assert decide(done, fleet(NODE, head=head), later(900), TIMINGS).steps == (PutNode("m1", "new"),)
    with pytest.raises(IllegalMove):
        abort(done, NOW, TIMINGS, "root")


def test_slurm_is_left_alone_from_the_agreement_until_all_have_proved_the_key_and_never_for_long() -> None:
    assert not unsettles_slurm(staged(), later(0))
    rotation = switching(NODE)
    for stage in (MungeStage.VERIFY, MungeStage.RETURN, MungeStage.CHECK):
        assert unsettles_slurm(rotation, later(3))
        assert not unsettles_slurm(rotation, later(UNSETTLED_MAX_S)), "one that is stuck stops nothing else"
        rotation = rotation.moved(stage, NOW)
    assert not unsettles_slurm(rotation.moved(MungeStage.ABORTED, NOW), NOW)
    assert not unsettles_slurm(switching(NODE).moved(MungeStage.VERIFY, NOW).moved(MungeStage.DONE, NOW), NOW)


def test_most_must_follow_within_the_time() -> None:
    others = tuple(replace(NODE, machine=f"m{number}") for number in (2, 3))
    rotation = switching(NODE, *others).moved(MungeStage.VERIFY, NOW)
    head, proved = replace(HEAD, key="new"), replace(NODE, key="new")
    one = fleet(proved, *others, head=head)
    assert decide(rotation, one, later(89), TIMINGS).rotation.stage is MungeStage.VERIFY
    back = decide(rotation, one, later(90), TIMINGS).rotation
    assert back.stage is MungeStage.RETURN
    assert "1 of 3 nodes" in back.taken_back
    two = fleet(proved, replace(others[0], key="new"), others[1], head=head)
    assert decide(rotation, two, later(900), TIMINGS).rotation.stage is MungeStage.VERIFY
