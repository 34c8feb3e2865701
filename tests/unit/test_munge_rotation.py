"""Single decisions of the munge key's rotation; whole histories are in tests/property/test_munge_rotation.py."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from meshd.errors import IllegalMove
from meshd.munge.rotation import UNSETTLED_MAX_S, Rotation, Stage, begin, key_in_force, unsettles_slurm
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
from meshd.munge.rotation_world import HeadView, NodeView, World, standing, waits_for

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMINGS = SwitchTimings(lead_per_node_s=0.0)
NODE = NodeView("m1", "h100-1", reachable=True, key="old", staged="new", proved=True)
HEAD = HeadView(key="old", staged="new", works=True)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def world(*nodes: NodeView, head: HeadView = HEAD) -> World:
    return World(head, {node.machine: node for node in nodes}, frozenset({"old", "new"}))


def staged() -> Rotation:
    return replace(begin("r", "old", NOW, "root"), new="new").moved(Stage.STAGE, NOW)


def switching(*nodes: NodeView) -> Rotation:
    rotation = decide(staged(), world(*nodes), NOW, TIMINGS).rotation
    assert rotation.stage is Stage.SWITCH
    return rotation


def test_nothing_is_switched_before_all_have_the_key() -> None:
    lacking = replace(NODE, staged="")
    decision = decide(staged(), world(lacking, head=replace(HEAD, staged="")), NOW, TIMINGS)
    assert decision.steps == (StageHead("new"), StageNode("m1", "new"))
    assert decision.rotation.stage is Stage.STAGE
    assert "m1 (it has not stored the new key yet)" in decision.rotation.failure
    assert standing(decision.rotation, lacking) == "waiting"
    for one, words in (
        (replace(NODE, reachable=False), "jobs are on it"),
        (replace(NODE, key=""), "older meshd"),
    ):
        assert words in waits_for(staged(), world(one))["m1"]
    for one in (replace(NODE, reachable=False, offline=True), NODE):
        assert waits_for(staged(), world(one)) == {}
    assert waits_for(replace(staged(), waived=("m1",)), world(lacking)) == {}


def test_all_are_told_of_one_moment() -> None:
    rotation = switching(NODE)
    assert rotation.switch_at == later(2)
    assert rotation.taking_part == ("m1",)
    decision = decide(rotation, world(NODE), NOW, TIMINGS)
    assert decision.steps == (SwitchHead("new", later(2)), SwitchNode("m1", "new", later(2)))
    many = [replace(NODE, machine=f"m{number}") for number in range(10_000)]
    fleet = decide(staged(), world(*many[:1000]), NOW, replace(TIMINGS, lead_per_node_s=0.003)).rotation
    assert fleet.switch_at == later(5), "so many take longer to be told"
    assert decide(staged(), world(*many), NOW, replace(TIMINGS, lead_per_node_s=0.003)).rotation.switch_at == later(15)
    assert key_in_force(rotation, "", later(1.9)) == "old"
    assert key_in_force(rotation, "", later(2)) == "new"
    assert key_in_force(rotation, "old", later(3)) == "old", "what the head says counts"
    busy = replace(HEAD, busy=True, moment=later(2))
    assert decide(rotation, world(NODE, head=busy), later(3), TIMINGS).rotation == rotation
    changed = replace(HEAD, key="new", moment=later(2))
    assert decide(rotation, world(NODE, head=changed), later(2.4), TIMINGS).rotation.stage is Stage.VERIFY


def test_taken_back_before_the_moment_nobody_returns_before_the_head_can() -> None:
    rotation = switching(NODE)
    back = abort(rotation, later(0.1), TIMINGS, "root")
    assert (back.stage, back.switch_at) == (Stage.RETURN, later(2.1))
    busy = replace(HEAD, busy=True, moment=later(2))
    assert decide(back, world(NODE, head=busy), later(1), TIMINGS).steps == ()
    again = decide(back, world(NODE, head=busy), later(2.2), TIMINGS)
    assert again.steps == ()
    assert again.rotation.switch_at == later(4.2)
    free = replace(HEAD, key="new", moment=later(2))
    node = replace(NODE, key="new")
    decision = decide(again.rotation, world(node, head=free), later(2.4), TIMINGS)
    assert decision.steps == (SwitchHead("old", later(4.2)), SwitchNode("m1", "old", later(4.2)))


def test_a_head_that_is_not_heard_of_is_tried_a_few_times() -> None:
    rotation = switching(NODE)
    for _ in range(TRIES_MAX):
        assert rotation.stage is Stage.SWITCH
        assert rotation.switch_at is not None
        after = rotation.switch_at + timedelta(seconds=1)
        rotation = decide(rotation, world(NODE), after, TIMINGS).rotation
    assert rotation.stage is Stage.RETURN
    assert "the moment passed before the head was told" in rotation.taken_back


def test_after_the_moment_each_must_prove_the_key() -> None:
    rotation = switching(NODE).moved(Stage.VERIFY, NOW)
    head = replace(HEAD, key="new")
    late = decide(rotation, world(NODE, head=head), later(1), TIMINGS)
    assert late.steps == (PutNode("m1", "new"),)
    about_to = replace(NODE, busy=True)
    assert decide(rotation, world(about_to, head=head), later(1), TIMINGS).steps == (), "munged is not restarted twice"
    switched = replace(NODE, key="new", proved=False)
    unproved = decide(rotation, world(switched, head=head), later(1), TIMINGS)
    assert unproved.steps == ()
    assert standing(unproved.rotation, switched) == "switched"
    deaf = decide(rotation, world(replace(switched, proved=True, slurmd=False), head=head), later(1), TIMINGS)
    assert deaf.steps == (RestartSlurmd("m1"),)
    proved = replace(switched, proved=True)
    no_head = decide(rotation, world(proved, head=replace(head, works=False)), later(1), TIMINGS)
    assert no_head.rotation.stage is Stage.VERIFY
    assert "on the head" in no_head.rotation.failure
    done = decide(rotation, world(proved, head=head), later(1), TIMINGS).rotation
    assert (done.stage, done.confirmed, done.ended_at) == (Stage.DONE, ("m1",), later(1))
    # One that comes back with the old key later is not forgotten.
    assert decide(done, world(NODE, head=head), later(900), TIMINGS).steps == (PutNode("m1", "new"),)
    with pytest.raises(IllegalMove):
        abort(done, NOW, TIMINGS, "root")


def test_slurm_is_left_alone_from_the_agreement_until_all_have_proved_the_key_and_never_for_long() -> None:
    assert not unsettles_slurm(staged(), later(0))
    rotation = switching(NODE)
    for stage in (Stage.VERIFY, Stage.RETURN, Stage.CHECK):
        assert unsettles_slurm(rotation, later(3))
        assert not unsettles_slurm(rotation, later(UNSETTLED_MAX_S)), "one that is stuck stops nothing else"
        rotation = rotation.moved(stage, NOW)
    assert not unsettles_slurm(rotation.moved(Stage.ABORTED, NOW), NOW)
    assert not unsettles_slurm(switching(NODE).moved(Stage.VERIFY, NOW).moved(Stage.DONE, NOW), NOW)


def test_most_must_follow_within_the_time() -> None:
    others = tuple(replace(NODE, machine=f"m{number}") for number in (2, 3))
    rotation = switching(NODE, *others).moved(Stage.VERIFY, NOW)
    head, proved = replace(HEAD, key="new"), replace(NODE, key="new")
    one = world(proved, *others, head=head)
    assert decide(rotation, one, later(89), TIMINGS).rotation.stage is Stage.VERIFY
    back = decide(rotation, one, later(90), TIMINGS).rotation
    assert back.stage is Stage.RETURN
    assert "1 of 3 nodes" in back.taken_back
    two = world(proved, replace(others[0], key="new"), others[1], head=head)
    assert decide(rotation, two, later(900), TIMINGS).rotation.stage is Stage.VERIFY
