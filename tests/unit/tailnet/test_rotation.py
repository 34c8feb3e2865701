"""The decisions of an auth key rotation: which nodes it waits for, in which order, and when it can be taken back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from meshd.errors import IllegalMove
from meshd.tailnet.rotation import (
    ENDED,
    MOVES,
    AuthKeyStage,
    KeyOrigin,
    KeyRef,
    NodeStage,
    abort,
    begin,
    waive,
    why_not_abort,
)
from meshd.tailnet.rotation_fleet import AuthKeyFleet, SeenNode
from meshd.tailnet.rotation_settle import CANARY_TRIES, holds_up, settle
from meshd.tailnet.rotation_steps import (
    PROVE_TRIES,
    REAUTH_PARALLEL,
    STORE_PARALLEL,
    RotationAction,
    RotationStep,
    StepOutcome,
    StepVerdict,
    begun,
    finished,
    next_steps,
)

NOW = datetime(2026, 11, 28, tzinfo=UTC)
OLD = KeyRef("0" * 64, "kOLD", NOW + timedelta(days=30), ("tag:gpu",), minted=True)
NEW = KeyRef("1" * 64, "kNEW", NOW + timedelta(days=90), ("tag:gpu",), minted=True)
DONE = StepOutcome(StepVerdict.DONE)


class Drive:
    """A rotation, its fleet, and what carries the steps out."""

    def __init__(self, nodes: int = 3, *, reauth: bool = False, compromised: bool = False) -> None:
        self.now = NOW
        self.rotation = begin(
            "r1", KeyOrigin.MINTED, NOW, by="root", reason="asked for", old=OLD, reauth=reauth, compromised=compromised
        )
        self.fleet = AuthKeyFleet(
            {
                f"m{i}": SeenNode(f"h100-{i}", OLD.sha256, True, f"100.64.0.{i}", (), f"nodekey:{i}", True)
                for i in range(1, nodes + 1)
            },
            in_use=OLD.sha256,
        )

    def see(self, machine: str, **changes: object) -> None:
        self.fleet = replace(
            self.fleet,
            nodes={**self.fleet.nodes, machine: replace(self.fleet.nodes[machine], **changes)},  # type: ignore[arg-type]
        )

    def lose(self, machine: str) -> None:
        self.fleet = replace(self.fleet, nodes={m: n for m, n in self.fleet.nodes.items() if m != machine})

    def look(self) -> list[RotationStep]:
        self.rotation = settle(self.rotation, self.fleet, self.now)
        return next_steps(self.rotation, self.fleet, self.now)

    def do(self, step: RotationStep, outcome: StepOutcome | None = None) -> None:
        self.rotation = begun(self.rotation, step, self.fleet, self.now)
        if outcome is None:
            outcome = self._effect(step)
        self.rotation = finished(self.rotation, step, outcome, self.now)

    def _effect(self, step: RotationStep) -> StepOutcome:
        target = self.rotation.target
        match step.action:
            case RotationAction.MINT:
                return StepOutcome(StepVerdict.DONE, key=NEW)
            case RotationAction.SWITCH:
                self.fleet = replace(self.fleet, in_use=NEW.sha256)
            case RotationAction.SWITCH_BACK:
                self.fleet = replace(self.fleet, in_use=OLD.sha256)
            case RotationAction.STORE:
                assert target
                self.see(step.machine, sha256=target.sha256)
            case RotationAction.REAUTH:
                self.see(step.machine, node_key=f"nodekey:new-{step.machine}")
                return StepOutcome(StepVerdict.DONE, node_key=f"nodekey:new-{step.machine}", gap_s=0.1)
        return DONE

    def until(self, *stages: AuthKeyStage, rounds: int = 50) -> None:
        for _ in range(rounds):
            steps = self.look()
            if self.rotation.stage in stages:
                return
            for step in steps:
                self.do(step)
            self.now += timedelta(seconds=1)
        raise AssertionError(f"stays in {self.rotation.stage}: {self.rotation.nodes}")

    def stage_of(self, machine: str) -> NodeStage:
        return self.rotation.nodes[machine].stage


def test_the_whole_way() -> None:
    drive = Drive()
    passed = [drive.rotation.stage]
    while not drive.rotation.ended:
        steps = drive.look()
        passed += [drive.rotation.stage] * (drive.rotation.stage is not passed[-1])
        for step in steps:
            drive.do(step)
    passed.append(drive.rotation.stage)
    assert passed == [
        AuthKeyStage.MINT,
        AuthKeyStage.PROVE,
        AuthKeyStage.SWITCH,
        AuthKeyStage.DISTRIBUTE,
        AuthKeyStage.REVOKE,
        AuthKeyStage.DONE,
    ]
    assert {node.stage for node in drive.rotation.nodes.values()} == {NodeStage.CONFIRMED}
    assert drive.fleet.in_use == NEW.sha256 and drive.look() == []


def test_only_legal_moves() -> None:
    rotation = begin("r", KeyOrigin.FILE, NOW, by="x", reason="", old=OLD, new=NEW)
    assert rotation.stage is AuthKeyStage.PROVE
    with pytest.raises(IllegalMove, match="prove cannot become revoke"):
        rotation.moved(AuthKeyStage.REVOKE, NOW)
    assert all(MOVES[stage] == frozenset() for stage in ENDED)


def test_keys_go_out_bounded() -> None:
    drive = Drive(40)
    drive.until(AuthKeyStage.DISTRIBUTE)
    steps = drive.look()
    assert len(steps) == STORE_PARALLEL
    assert len(next_steps(drive.rotation, drive.fleet, NOW, steps[:10])) == STORE_PARALLEL - 10


def test_offline_nodes_are_held_for_and_served_when_they_return() -> None:
    drive = Drive()
    drive.see("m2", reachable=False)
    drive.until(AuthKeyStage.HOLD)
    assert drive.look() == [] and set(holds_up(drive.rotation, drive.fleet)) == {"m2"}
    drive.see("m2", reachable=True)
    assert drive.look() == [RotationStep(RotationAction.STORE, "m2")]
    assert drive.rotation.stage is AuthKeyStage.DISTRIBUTE
    drive.until(AuthKeyStage.DONE)


def test_a_machine_that_boots_with_the_old_key_is_remembered_and_one_that_has_the_new_is_not() -> None:
    drive = Drive(1)
    booting = SeenNode("h100-8", OLD.sha256)
    drive.fleet = replace(drive.fleet, nodes={**drive.fleet.nodes, "m8": booting})
    drive.until(AuthKeyStage.HOLD)
    drive.fleet = replace(drive.fleet, nodes={**drive.fleet.nodes, "m9": replace(booting, sha256=NEW.sha256)})
    drive.look()
    assert set(drive.rotation.nodes) == {"m1", "m8"} and drive.stage_of("m8") is NodeStage.WAITING
    drive.lose("m8")  # given up: it is no longer waited for
    drive.until(AuthKeyStage.DONE)
    assert drive.stage_of("m8") is NodeStage.GONE


def test_a_machine_found_just_before_the_revocation_takes_it_back_to_the_nodes() -> None:
    drive = Drive(1)
    drive.until(AuthKeyStage.REVOKE)
    drive.fleet = replace(drive.fleet, nodes={**drive.fleet.nodes, "m9": SeenNode("h100-9", "", True, "100.64.0.9")})
    assert drive.look() == [RotationStep(RotationAction.STORE, "m9")]


def test_waived() -> None:
    drive = Drive(2)
    drive.see("m2", reachable=False)
    drive.until(AuthKeyStage.HOLD)
    drive.rotation = waive(drive.rotation, "m2", "root", NOW)
    drive.until(AuthKeyStage.DONE)
    assert drive.stage_of("m2") is NodeStage.WAIVED


def test_an_old_key_that_has_ended_by_itself_is_not_held_for() -> None:
    drive = Drive(2)
    drive.see("m2", reachable=False)
    drive.until(AuthKeyStage.HOLD)
    drive.now += timedelta(days=31)
    drive.look()
    assert drive.rotation.stage is AuthKeyStage.REVOKE


def test_the_first_login_is_alone_and_of_an_idle_node() -> None:
    drive = Drive(9, reauth=True)
    for i in (1, 2, 3):
        drive.see(f"m{i}", jobs=("7",))
    drive.until(AuthKeyStage.REAUTH)
    (step,) = drive.look()
    assert step == RotationStep(RotationAction.REAUTH, "m4")
    drive.do(step)
    steps = drive.look()
    assert len(steps) == REAUTH_PARALLEL
    for step in steps:
        drive.do(step)
    steps = drive.look()
    assert [s.machine for s in steps] == ["m9", "m1"], "of one job's nodes only one at a time"
    drive.until(AuthKeyStage.DONE)


def test_nobody_logs_in_anew_while_slurm_cannot_be_read() -> None:
    drive = Drive(2, reauth=True)
    drive.until(AuthKeyStage.REAUTH)
    drive.fleet = replace(drive.fleet, jobs_known=False)
    assert drive.look() == []


def test_the_head_must_see_what_the_node_says() -> None:
    drive = Drive(2, reauth=True)
    drive.until(AuthKeyStage.REAUTH)
    (step,) = drive.look()
    drive.do(step, StepOutcome(StepVerdict.DONE, node_key="nodekey:unseen"))
    assert drive.look() == [] and drive.stage_of(step.machine) is NodeStage.REAUTHENTICATED
    drive.see(step.machine, node_key="nodekey:unseen")
    drive.look()
    assert drive.stage_of(step.machine) is NodeStage.CONFIRMED


@pytest.mark.parametrize("seen", [{"address": "100.64.0.99"}, {"online": False}])
def test_a_first_node_that_comes_back_as_another_ends_it(seen: dict[str, object]) -> None:
    drive = Drive(2, reauth=True)
    drive.until(AuthKeyStage.REAUTH)
    (step,) = drive.look()
    drive.do(step)
    drive.see(step.machine, **seen)
    drive.now += timedelta(seconds=70)
    drive.look()  # notes it
    drive.until(AuthKeyStage.ABORTED)
    assert "could not log in again" in drive.rotation.taken_back
    assert drive.fleet.in_use == OLD.sha256


def test_a_key_that_no_node_can_log_in_with_is_taken_back_from_all() -> None:
    drive = Drive(3, reauth=True)
    drive.until(AuthKeyStage.REAUTH)
    for _ in range(CANARY_TRIES):
        (step,) = drive.look()
        drive.do(step, StepOutcome(StepVerdict.REFUSED, "invalid key"))
        drive.now += timedelta(seconds=400)
    drive.until(AuthKeyStage.ABORTED)
    assert "invalid key" in drive.rotation.taken_back
    assert {seen.sha256 for seen in drive.fleet.nodes.values()} == {OLD.sha256}


def test_an_unclear_login_is_asked_for_again_under_the_same_number() -> None:
    drive = Drive(1, reauth=True)
    drive.until(AuthKeyStage.REAUTH)
    (step,) = drive.look()
    drive.do(step, StepOutcome(StepVerdict.AGAIN, "no answer"))
    assert drive.stage_of("m1") is NodeStage.REAUTHENTICATING and drive.look() == []
    drive.now += timedelta(seconds=10)
    assert drive.look() == [step]
    drive.do(step)
    assert drive.rotation.nodes["m1"].attempts == 1


def test_a_node_that_cannot_log_in_anew_is_held_for() -> None:
    drive = Drive(2, reauth=True)
    drive.see("m2", reauth_problem="tailscale 1.80 is older than 1.90")
    drive.until(AuthKeyStage.HOLD)
    assert holds_up(drive.rotation, drive.fleet) == {"m2": "tailscale 1.80 is older than 1.90"}


def test_a_refused_key_is_given_up_after_a_few_tries_and_an_outage_never() -> None:
    drive = Drive()
    drive.until(AuthKeyStage.PROVE)
    for _ in range(20):
        drive.now += timedelta(seconds=400)
        (step,) = drive.look()
        drive.do(step, StepOutcome(StepVerdict.AGAIN, "control cannot be reached"))
    assert drive.rotation.stage is AuthKeyStage.PROVE and "control" in drive.rotation.failure
    drive = Drive()
    drive.until(AuthKeyStage.PROVE)
    for _ in range(PROVE_TRIES):
        drive.now += timedelta(seconds=400)
        (step,) = drive.look()
        drive.do(step, StepOutcome(StepVerdict.REFUSED, "wrong tags"))
    assert drive.rotation.stage is AuthKeyStage.DISCARD and drive.rotation.taken_back == "wrong tags"


@pytest.mark.parametrize("stage", [AuthKeyStage.MINT, AuthKeyStage.PROVE, AuthKeyStage.SWITCH, AuthKeyStage.HOLD])
def test_taken_back(stage: AuthKeyStage) -> None:
    drive = Drive(3)
    drive.see("m3", reachable=False)
    drive.until(stage)
    assert why_not_abort(drive.rotation) == ""
    drive.rotation = abort(drive.rotation, "root")
    drive.until(AuthKeyStage.ABORTED)
    assert drive.fleet.in_use == OLD.sha256
    assert {seen.sha256 for seen in drive.fleet.nodes.values()} == {OLD.sha256}
    assert drive.rotation.taken_back == "aborted by root"


def test_the_way_back_waits_for_what_is_under_way_and_for_machines_born_with_the_new_key() -> None:
    drive = Drive(1)
    drive.until(AuthKeyStage.SWITCH)
    drive.rotation = abort(drive.rotation, "root")
    busy = [RotationStep(RotationAction.SWITCH)]
    assert settle(drive.rotation, drive.fleet, NOW, busy).stage is AuthKeyStage.SWITCH
    drive.fleet = replace(
        drive.fleet, in_use=NEW.sha256, nodes={**drive.fleet.nodes, "m9": SeenNode("h100-9", NEW.sha256)}
    )
    assert drive.look() == [RotationStep(RotationAction.SWITCH_BACK)]
    drive.do(RotationStep(RotationAction.SWITCH_BACK))
    drive.look()
    assert drive.rotation.stage is AuthKeyStage.ROLLBACK, "m9 still needs the new key to join"
    drive.see("m9", reachable=True, address="100.64.0.9")
    drive.until(AuthKeyStage.ABORTED)


def test_no_way_back_once_the_revocation_was_asked_for() -> None:
    drive = Drive(1)
    drive.until(AuthKeyStage.REVOKE)
    (step,) = drive.look()
    drive.do(step, StepOutcome(StepVerdict.AGAIN, "the API is in trouble"))
    assert "nothing to go back to" in why_not_abort(drive.rotation)
    drive.rotation = abort(drive.rotation, "root")
    drive.until(AuthKeyStage.DONE)


def test_compromised_revokes_first_and_has_no_way_back() -> None:
    drive = Drive(2, compromised=True)
    assert drive.look() == [RotationStep(RotationAction.REVOKE_OLD)]
    drive.do(RotationStep(RotationAction.REVOKE_OLD))
    assert drive.rotation.stage is AuthKeyStage.MINT and drive.rotation.reauth
    assert why_not_abort(drive.rotation)
    drive.until(AuthKeyStage.DONE)
    assert all(node.node_key for node in drive.rotation.nodes.values())


def test_every_stage_has_a_way_on() -> None:
    assert set(MOVES) == set(AuthKeyStage)
    assert {stage for stage in AuthKeyStage if not MOVES[stage]} == ENDED
