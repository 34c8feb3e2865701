"""Each phase against each observation: the step, and above all the steps that must not happen."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Policy
from meshd.model.machine import MOVES, Machine, Phase, Removal
from meshd.model.observed import Fresh, Snapshot
from meshd.plan.lifecycle import contradiction_warning, next_step
from meshd.plan.liveness import ENDED
from meshd.plan.plan_input import PlanInput
from meshd.provider_api import InstanceState
from tests.unit.worlds import GONE_DARK, NOW, ago, around, instance, machine, node, peer, slurm, snapshot, tailnet

POLICY = Policy()
ALL = tuple(Phase)
IN_SLURM = (Phase.CONFIGURING, Phase.TESTING, Phase.READY, Phase.DRAINING)
LONG = 100_000.0


def step(m: Machine, seen: Snapshot, **policy: Any) -> p.Step | None:
    """The next step, without RecordFitness: test_fitness.py and test_repair.py prove that."""
    cooldowns: dict[CooldownKey, Cooldown] = policy.pop("cooldowns", {})
    found = next_step(m, PlanInput.of(seen, replace(POLICY, **policy), NOW, cooldowns))
    return None if isinstance(found, p.RecordFitness) else found


def with_reason(m: Machine, reason: str, by: str, *states: str, at: datetime = NOW) -> Snapshot:
    """As `around`, with a reason in Slurm."""
    told = node(m, *states, reason=reason, reason_by=by, reason_at=at)
    return around(m, slurm=Fresh(slurm(told), NOW))


def test_a_drain_from_before_this_machine_tells_nothing_of_it() -> None:
    m = machine(Phase.TESTING)  # its slurmd was started 1000 s ago
    assert isinstance(step(m, with_reason(m, "Kill task failed", "root", "IDLE", "DRAIN", at=ago(2000))), p.MarkReady)
    assert to(step(m, with_reason(m, "Kill task failed", "root", "IDLE", "DRAIN", at=ago(500)))) is Phase.DRAINING
    assert step(m, with_reason(m, "bad fan", "alice", "IDLE", "DRAIN", at=ago(2000))) is None


def to(found: p.Step | None) -> Phase | None:
    assert found is None or isinstance(found, p.Move), found
    return found.to if found else None


def gone_from_cloud(m: Machine) -> Snapshot:
    return around(m, instances={"aws": Fresh((), NOW)})


# -- an unavailable source destroys nothing ---------------------------------------------------------------------------

DESTROYS = (p.Terminate, p.Leave, p.Drain)


@pytest.mark.parametrize("phase", ALL)
@pytest.mark.parametrize("removal", [None, Removal.SCALE_DOWN, Removal.BY_USER])
@pytest.mark.parametrize("age_s", [10.0, LONG])
def test_with_no_source_at_all_nothing_is_destroyed(phase: Phase, removal: Removal | None, age_s: float) -> None:
    seen = snapshot(
        instances={"aws": GONE_DARK}, offers={"aws": GONE_DARK}, tailnet=GONE_DARK, slurm=GONE_DARK, node_addrs={}
    )
    found = step(machine(phase, age_s=age_s, removal=removal, heartbeat_at=ago(LONG)), seen)
    if phase in {Phase.BOOTING, Phase.JOINING, Phase.CONFIGURING, Phase.TESTING, Phase.READY, Phase.DRAINING}:
        assert not isinstance(found, DESTROYS)
        assert not removal or not isinstance(found, p.Move) or found.to in {Phase.DRAINING, Phase.TERMINATING}
        assert removal or found is None


@pytest.mark.parametrize("phase", [Phase.BOOTING, Phase.JOINING, Phase.CONFIGURING, Phase.TESTING, Phase.READY])
def test_a_head_off_the_tailnet_gives_nothing_up(phase: Phase) -> None:
    for seen in (GONE_DARK, Fresh(tailnet(healthy=False), NOW)):
        m = machine(phase, age_s=LONG, heartbeat_at=ago(LONG), munge_ok=False)
        down = around(m, "DOWN", "NOT_RESPONDING", tailnet=seen)
        assert step(m, down) is None, (
            "its agent cannot be heard, its slurmd cannot be reached: that is the head's fault"
        )


@pytest.mark.parametrize("phase", [Phase.JOINING, Phase.CONFIGURING, Phase.TESTING])
def test_deadlines_count_from_when_the_head_can_see_again(phase: Phase) -> None:
    m = machine(phase, age_s=LONG, munge_ok=False)
    back = around(m, "UNKNOWN", tailnet=Fresh(tailnet(peer(m)), NOW, ago(30)))
    assert step(m, back) is None
    assert to(step(m, around(m, "UNKNOWN"))) in {Phase.TERMINATING, Phase.DRAINING}


def test_silence_counts_from_when_the_head_can_hear_again() -> None:
    m = machine(Phase.READY, heartbeat_at=ago(LONG))
    assert to(step(m, around(m, "DOWN", "NOT_RESPONDING"))) is Phase.DRAINING
    back = around(m, "DOWN", "NOT_RESPONDING", tailnet=Fresh(tailnet(peer(m)), NOW, ago(30)))
    assert step(m, back) is None


@pytest.mark.parametrize("phase", [Phase.TESTING, Phase.CONFIGURING])
def test_slurm_away_passes_no_deadline(phase: Phase) -> None:
    m = machine(phase, age_s=LONG)
    assert step(m, around(m, slurm=GONE_DARK, node_addrs={})) is None


@pytest.mark.parametrize("at", [ago(600), ago(-600)])
def test_a_word_from_long_ago_or_from_the_future_is_none(at: Any) -> None:
    m = machine(Phase.DRAINING)
    drained = slurm(node(m, "IDLE", "DRAIN"))
    assert isinstance(step(m, around(m, slurm=Fresh(drained, NOW))), p.Leave)
    assert step(m, around(m, slurm=Fresh(drained, at))) is None
    ready = machine(Phase.READY, heartbeat_at=ago(LONG))
    assert step(ready, around(ready, instances={"aws": Fresh((), at)})) is None


def test_a_node_that_only_control_has_lost_is_kept() -> None:
    m = machine(Phase.READY)
    offline = Fresh(tailnet(replace(peer(m), online=False, last_seen=ago(LONG))), NOW)
    for seen in (around(m, "IDLE", tailnet=offline), around(m, "MIXED", tailnet=offline, jobs={m.slot: "7"})):
        assert step(m, seen) is None
        assert step(replace(m, heartbeat_at=ago(LONG)), seen) is None, "Slurm still reaches it"


def test_the_node_key_of_its_own_device_shall_last() -> None:
    m = machine(Phase.READY, tailnet_id=f"n-{machine(Phase.READY).name}")
    ends = replace(peer(m), key_expiry=ago(-90 * 86400))
    seen = around(m, tailnet=Fresh(tailnet(ends), NOW))
    found = step(m, seen, may_change_devices=True)
    assert isinstance(found, p.DisableKeyExpiry)
    assert found.device_id == m.tailnet_id
    assert step(m, seen) is None, "no credential"
    assert step(m, around(m), may_change_devices=True) is None, "it does not expire"
    another = step(replace(m, tailnet_id="n-other"), seen, may_change_devices=True)
    assert isinstance(another, p.RecordDevice), "another one's device is not changed"
    assert step(replace(m, key_expiry_asked_at=ago(60)), seen, may_change_devices=True) is None, "asked just now"
    again = step(replace(m, key_expiry_asked_at=ago(3600)), seen, may_change_devices=True)
    assert isinstance(again, p.DisableKeyExpiry)
    assert to(step(replace(m, removal=Removal.BY_USER), seen, may_change_devices=True)) is Phase.DRAINING, "more urgent"


# -- a device that was deleted while its machine runs -----------------------------------------------------------------


@pytest.mark.parametrize("phase", IN_SLURM)
def test_a_deleted_device_is_written_down_and_ends_nothing(phase: Phase) -> None:
    m = machine(phase, tailnet_id="n-old", munge_ok=False, heartbeat_at=ago(LONG))
    for states, jobs in ((("MIXED",), {m.slot: "7"}), (("DOWN", "NOT_RESPONDING"), {m.slot: "7"})):
        ours = slurm(node(m, *states, "DRAIN", reason="meshd: x"), jobs=jobs)
        seen = around(m, slurm=Fresh(ours, NOW), node_addrs={}, tailnet=Fresh(tailnet(), NOW))
        found = step(m, seen)
        if phase is Phase.TESTING and "MIXED" in states:
            assert isinstance(found, p.MarkReady)
            continue
        assert isinstance(found, p.RecordDevice), found
        assert found.gone
        assert "deleted" in found.reason
        noted = replace(m, device_gone_since=ago(600))
        assert step(noted, seen) is None, "once, and what runs there goes on"
        back = replace(seen, tailnet=Fresh(tailnet(replace(peer(m), id="n-old")), NOW))
        again = step(noted, back)
        assert isinstance(again, p.RecordDevice)
        assert not again.gone


def test_a_device_is_not_called_deleted_where_that_is_not_known() -> None:
    m = machine(Phase.READY, tailnet_id="n-old")
    gone = Fresh(tailnet(), NOW)
    assert isinstance(step(m, around(m, tailnet=gone)), p.RecordDevice)
    assert step(m, around(m, tailnet=GONE_DARK)) is None
    assert step(m, around(m, tailnet=Fresh(tailnet(healthy=False), NOW))) is None
    assert step(m, around(m, tailnet=gone, instances={"aws": GONE_DARK})) is None, "perhaps the machine is gone too"
    assert step(replace(m, tailnet_id=""), around(m, tailnet=gone)) is None


def test_an_idle_node_that_does_not_come_back_is_given_up_and_says_why() -> None:
    m = machine(Phase.READY, tailnet_id="n-old", heartbeat_at=ago(LONG), device_gone_since=ago(LONG))
    found = step(m, around(m, "DOWN", "NOT_RESPONDING", tailnet=Fresh(tailnet(), NOW)))
    assert isinstance(found, p.Move)
    assert found.to is Phase.DRAINING
    assert "its tailnet device was deleted" in found.failure


# -- what the cloud says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", IN_SLURM[:3])
def test_missing_from_the_listing_but_speaking_is_alive(phase: Phase) -> None:
    m = machine(phase, heartbeat_at=ago(20))
    assert not isinstance(step(m, gone_from_cloud(m)), p.Move)


@pytest.mark.parametrize("phase", IN_SLURM[:3])
def test_missing_and_silent_is_given_up(phase: Phase) -> None:
    m = machine(phase, heartbeat_at=ago(LONG))
    assert isinstance(step(m, gone_from_cloud(m)), p.AskCloud), "its cloud is asked why first"
    asked = replace(m, cloud_asked_at=ago(5))
    found = step(asked, gone_from_cloud(asked))
    assert to(found) is (Phase.TERMINATING if phase is Phase.CONFIGURING else Phase.DRAINING)


def saying(m: Machine, state: InstanceState, *states: str, **parts: Any) -> Snapshot:
    """All sources are well, except that the cloud says the machine has ended."""
    return around(m, *states, instances={"aws": Fresh((instance(m, state, reason="why"),), NOW)}, **parts)


@pytest.mark.parametrize("phase", IN_SLURM)
@pytest.mark.parametrize("state", sorted(ENDED))
@pytest.mark.parametrize("jobs", [True, False])
def test_no_word_of_a_cloud_ends_a_machine_that_speaks(phase: Phase, state: InstanceState, jobs: bool) -> None:
    m = machine(phase, heartbeat_at=ago(5), slurmd_start_ordered_at=ago(1000), drained_at=ago(900))
    busy = {"jobs": {m.slot: "7"}} if jobs else {}
    for asked in (None, ago(30), ago(3)):
        now = replace(m, agent_asked_at=asked)
        found = step(now, saying(now, state, "ALLOCATED" if jobs else "IDLE", "DRAIN", **busy))
        assert not isinstance(found, p.Terminate)
        assert not isinstance(found, p.Move) or not found.failure
        assert not isinstance(found, p.Leave) or not (found.dead or jobs)
        warning = contradiction_warning(now, PlanInput.of(saying(now, state), POLICY, NOW, {}))
        assert warning is not None
        assert "why" in warning.reason


@pytest.mark.parametrize("state", [InstanceState.GONE, InstanceState.PREEMPTED])
def test_an_agent_is_asked_before_a_plain_word_is_believed(state: InstanceState) -> None:
    m = machine(Phase.READY, heartbeat_at=ago(20))
    assert isinstance(step(m, saying(m, state)), p.AskAgent)
    asked = replace(m, agent_asked_at=ago(4))
    assert step(asked, saying(asked, state)) is None, "it may yet answer"
    unanswered = replace(m, agent_asked_at=ago(6))
    assert to(step(unanswered, saying(unanswered, state))) is Phase.DRAINING
    answered = replace(m, heartbeat_at=ago(3), agent_asked_at=ago(6))
    assert step(answered, saying(answered, state)) is None
    later = replace(m, heartbeat_at=ago(3), agent_asked_at=ago(16))
    assert isinstance(step(later, saying(later, state)), p.AskAgent), "again and again"
    silent = replace(m, heartbeat_at=ago(121))
    assert to(step(silent, saying(silent, state))) is Phase.DRAINING
    deaf = {"tailnet": GONE_DARK}
    assert step(unanswered, saying(unanswered, state, **deaf)) is None, "the head hears nobody"
    back = {"tailnet": Fresh(tailnet(peer(m)), NOW, ago(2))}
    assert step(unanswered, saying(unanswered, state, **back)) is None, "it has heard for a moment only"


@pytest.mark.parametrize("state", [InstanceState.FAILED, InstanceState.STOPPED])
def test_a_machine_that_is_ill_is_given_up_once_neither_agent_nor_slurm_sees_it(state: InstanceState) -> None:
    m = machine(Phase.READY, heartbeat_at=ago(20))
    assert step(m, saying(m, state, "DOWN", "NOT_RESPONDING")) is None
    quiet = replace(m, heartbeat_at=ago(121))
    assert step(quiet, saying(quiet, state, "IDLE")) is None, "its slurmd answers"
    assert step(quiet, saying(quiet, state, slurm=GONE_DARK)) is None, "whether it does is not known"
    assert to(step(quiet, saying(quiet, state, "DOWN", "NOT_RESPONDING"))) is Phase.DRAINING
    rebooting = saying(quiet, state, "DOWN", "REBOOT_ISSUED")
    assert step(quiet, rebooting) is None


@pytest.mark.parametrize("state", sorted(ENDED))
def test_one_that_never_spoke_is_given_up_at_its_clouds_word(state: InstanceState) -> None:
    for phase in (Phase.BOOTING, Phase.JOINING, Phase.CONFIGURING, Phase.READY):
        m = machine(phase, heartbeat_at=None)
        found = step(m, saying(m, state, "DOWN"))
        assert to(found) in {Phase.TERMINATING, Phase.DRAINING}


def test_one_that_speaks_is_not_called_gone_after_it_was_ended() -> None:
    m = machine(Phase.TERMINATING, terminate_called_at=ago(60), heartbeat_at=ago(-1), tailnet_ip="")
    assert not isinstance(step(m, saying(m, InstanceState.GONE)), p.Move)
    quiet = replace(m, heartbeat_at=ago(61))
    assert to(step(quiet, saying(quiet, InstanceState.GONE))) is Phase.GONE


def test_one_that_left_and_works_again_is_not_ended_under_its_job() -> None:
    """Its slurmd did not stop, and somebody resumed the node: a job came although the machine is TERMINATING."""
    m = machine(Phase.TERMINATING, left_slurm=True, slurmd_started=True, tailnet_ip="100.64.0.2", line_published=False)
    busy = around(m, "MIXED", jobs={m.slot: "7"})
    assert step(m, busy) is None
    assert isinstance(step(m, around(m, "IDLE")), p.Terminate)
    assert isinstance(step(m, around(m, "DOWN", jobs={m.slot: "7"})), p.Terminate), "a node that is DOWN runs no job"
    assert isinstance(step(replace(m, removal=Removal.FORCED), busy), p.Terminate)


# -- a reboot ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["REBOOT_ISSUED", "REBOOT_REQUESTED", "POWERING_UP", "POWERING_DOWN"])
@pytest.mark.parametrize("base", ["DOWN", "IDLE"])
def test_a_node_that_reboots_is_waited_for_as_long_as_a_boot_may_take(word: str, base: str) -> None:
    m = machine(Phase.READY, heartbeat_at=ago(899))
    seen = around(m, base, word, "NOT_RESPONDING", "DRAIN")
    assert step(m, seen) is None
    assert to(step(replace(m, heartbeat_at=ago(901)), seen)) is Phase.DRAINING
    missing = replace(seen, instances={"aws": Fresh((), NOW)})
    assert step(m, missing) is None, "some clouds do not list a machine that reboots"
    assert to(step(m, around(m, "DOWN", "NOT_RESPONDING"))) is Phase.DRAINING, "no reboot"


def test_a_reboot_by_hand_is_known_from_its_agent() -> None:
    m = machine(Phase.READY, heartbeat_at=ago(600))
    down = around(m, "DOWN", "NOT_RESPONDING")
    assert step(replace(m, rebooting_since=ago(600)), down) is None
    late = replace(m, heartbeat_at=ago(901), rebooting_since=ago(901))
    found = step(late, down)
    assert isinstance(found, p.Move)
    assert "900 s" in found.failure


def test_a_node_that_reboots_while_it_is_tested_has_longer() -> None:
    m = machine(Phase.TESTING, age_s=600)
    assert to(step(m, around(m, "DOWN"))) is Phase.DRAINING
    assert step(m, around(m, "DOWN", "REBOOT_ISSUED")) is None


@pytest.mark.parametrize("state", [InstanceState.UNKNOWN, InstanceState.RUNNING, InstanceState.BOOTING])
def test_a_state_that_is_not_known_means_nothing(state: InstanceState) -> None:
    m = machine(Phase.READY)
    assert step(m, around(m, instances={"aws": Fresh((instance(m, state),), NOW)})) is None


def test_a_fresh_machine_may_be_missing() -> None:
    m = machine(Phase.BOOTING, launch_called_at=ago(30), age_s=30, cloud_asked_at=ago(5))
    assert step(m, snapshot()) is None


def test_being_shut_down_its_jobs_are_not_killed_early() -> None:
    m = machine(Phase.DRAINING)
    ending = {"aws": Fresh((instance(m, InstanceState.TERMINATING),), NOW)}
    busy = around(m, "ALLOCATED", "DRAIN", jobs={m.slot: "7"}, instances=ending)
    assert step(m, busy) is None
    over = {"aws": Fresh((instance(m, InstanceState.GONE),), NOW)}
    assert isinstance(step(m, around(m, "ALLOCATED", "DRAIN", jobs={m.slot: "7"}, instances=over)), p.AskAgent)
    dead = replace(m, agent_asked_at=ago(6), heartbeat_at=ago(7))
    found = step(dead, around(dead, "ALLOCATED", "DRAIN", jobs={m.slot: "7"}, instances=over))
    assert isinstance(found, p.Leave)
    assert found.dead


# -- the way in -------------------------------------------------------------------------------------------------------


def test_requested() -> None:
    m = machine(Phase.REQUESTED, created_at=ago(5))
    assert isinstance(step(m, snapshot()), p.Launch)
    assert to(step(replace(m, removal=Removal.SCALE_DOWN), snapshot())) is Phase.GONE
    refused = {CooldownKey("provider:aws"): Cooldown(CooldownKey("provider:aws"), ago(-60), "key refused")}
    assert isinstance(step(m, snapshot(), cooldowns=refused), p.Launch), (
        "the last look before the call stops it for good"
    )
    cooldown = {
        CooldownKey("provider:aws"): Cooldown(
            CooldownKey("provider:aws"), ago(-60), "slow down", cause=CooldownCause.PAUSE
        )
    }
    assert step(m, snapshot(), cooldowns=cooldown) is None
    assert to(step(replace(m, created_at=ago(LONG)), snapshot(), cooldowns=cooldown)) is Phase.GONE


def test_launching_has_a_way_out_when_its_cloud_never_answers() -> None:
    m = machine(Phase.LAUNCHING, launch_called_at=ago(LONG), age_s=LONG)
    assert to(step(m, snapshot(instances={"aws": GONE_DARK}))) is Phase.TERMINATING
    given_up = machine(Phase.TERMINATING, instance_id="", age_s=LONG)
    assert to(step(given_up, snapshot(instances={"aws": GONE_DARK}))) is Phase.LOST, "it is not forgotten"
    lost = machine(Phase.LOST, instance_id="", age_s=LONG)
    found = step(lost, snapshot(instances={"aws": Fresh((instance(lost),), NOW)}))
    assert isinstance(found, p.Adopt), "it is ended when its cloud shows it again"
    assert to(step(lost, snapshot())) is Phase.GONE


def test_a_machine_that_does_not_join_is_given_up_with_its_own_last_words() -> None:
    m = machine(Phase.JOINING, age_s=601)
    silent = step(m, around(m))
    reached = step(replace(m, head_reached_at=ago(500)), around(m))
    told = step(replace(m, problem="gpu: nvidia-smi hangs", head_reached_at=ago(500)), around(m))
    for found in (silent, reached, told):
        assert isinstance(found, p.Move)
        assert found.to is Phase.TERMINATING
    assert isinstance(told, p.Move)
    assert "gpu: nvidia-smi hangs" in told.failure
    words = [found.failure for found in (silent, reached, told) if isinstance(found, p.Move)]
    assert ["ACL" in text for text in words] == [True, False, False], "the way to the head is open"


def test_booting_is_seen_or_given_up() -> None:
    m = machine(Phase.BOOTING)
    assert isinstance(step(m, around(m)), p.RecordPeer)
    assert step(m, around(m, tailnet=Fresh(tailnet(), NOW))) is None
    old = machine(Phase.BOOTING, age_s=LONG)
    assert to(step(old, around(old, tailnet=Fresh(tailnet(), NOW)))) is Phase.TERMINATING


def test_configuring_goes_on_in_order() -> None:
    m = machine(Phase.CONFIGURING)
    assert isinstance(step(m, around(m, node_addrs={m.slot: m.tailnet_ip})), p.RecordPublished)
    assert step(m, around(m, node_addrs={m.slot: "100.64.9.9"})) is None, "another machine's line"
    ready = replace(m, munge_ok=True, line_published=True)
    assert isinstance(step(ready, around(ready)), p.StartSlurmd)
    assert to(step(replace(ready, slurmd_started=True), around(ready))) is Phase.TESTING


@pytest.mark.parametrize("started", [False, True])
def test_what_never_ran_a_slurmd_need_not_be_drained(started: bool) -> None:
    ordered_at = ago(400) if started else None
    m = machine(Phase.CONFIGURING, age_s=LONG, line_published=True, slurmd_start_ordered_at=ordered_at)
    assert to(step(m, around(m))) is (Phase.DRAINING if started else Phase.TERMINATING)
    gone = replace(m, removal=Removal.BY_USER)
    assert to(step(gone, around(gone, slurm=GONE_DARK))) is (Phase.DRAINING if started else Phase.TERMINATING)


def test_testing_is_accepted_or_given_up() -> None:
    m = machine(Phase.TESTING)
    assert isinstance(step(m, around(m, "IDLE")), p.MarkReady)
    assert isinstance(step(m, with_reason(m, "meshd: free slot", "slurm", "IDLE", "DRAIN")), p.MarkReady)
    assert step(m, with_reason(m, "drained by alice: mine", "slurm", "IDLE", "DRAIN")) is None, "it waits for her"
    assert step(m, around(m, "IDLE", "DRAIN")) is None, "nobody knows whose drain it is"
    late = machine(Phase.TESTING, age_s=LONG)
    assert step(late, with_reason(late, "bad fan", "alice", "IDLE", "DRAIN")) is None, "no deadline ends it"
    assert to(step(m, with_reason(m, "Kill task failed", "root", "IDLE", "DRAIN"))) is Phase.DRAINING
    assert to(step(m, around(m, "IDLE", "INVALID_REG", "DRAIN"))) is Phase.DRAINING, "up, and refused all the same"
    assert step(m, around(m, "DOWN", "NOT_RESPONDING")) is None
    assert to(step(m, around(m, "DOWN", "INVALID_REG"))) is Phase.DRAINING
    other = around(m, slurm=Fresh(slurm(node(m, "IDLE", node_addr="100.64.9.9")), NOW))
    assert step(m, other) is None, "another machine's node says nothing of this one"
    old = machine(Phase.TESTING, age_s=LONG)
    assert to(step(old, around(old, "UNKNOWN"))) is Phase.DRAINING


def test_a_registration_that_slurm_ignored_is_repeated_once() -> None:
    m = machine(Phase.TESTING, age_s=20, slurmd_start_ordered_at=ago(20), slurmd_started=True)
    off = ("IDLE", "CLOUD", "POWERED_DOWN")
    assert isinstance(step(m, around(m, *off)), p.RestartSlurmd)
    placeholder = around(m, slurm=Fresh(slurm(node(m, *off, node_addr="127.0.0.1")), NOW))
    assert isinstance(step(m, placeholder), p.RestartSlurmd)
    assert step(m, around(m, *off, "POWERING_DOWN")) is None, "Slurm would ignore the next one too"
    assert step(m, around(m, "IDLE", "CLOUD", "POWERING_UP")) is None
    assert step(m, around(m, *off, "POWER_UP")) is None
    assert step(replace(m, slurmd_restarted_at=ago(5)), around(m, *off)) is None
    assert step(replace(m, slurmd_start_ordered_at=ago(5)), around(m, *off)) is None, "it may only just register"


# -- at work, and the way out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("states", [("IDLE",), ("ALLOCATED",), ("MIXED",), ("IDLE", "DRAIN"), ("DOWN",)])
def test_a_ready_machine_that_speaks_is_left_alone(states: tuple[str, ...]) -> None:
    m = machine(Phase.READY)
    assert step(m, around(m, *states)) is None


def test_dead_only_when_nobody_hears_it_and_no_job_is_on_it() -> None:
    m = machine(Phase.READY, heartbeat_at=ago(LONG))
    assert step(m, around(m, "IDLE")) is None, "Slurm reaches it"
    assert step(m, around(m, "DOWN", jobs={m.slot: "7"})) is None
    assert step(m, around(m, slurm=GONE_DARK)) is None
    assert to(step(m, around(m, "DOWN"))) is Phase.DRAINING


def test_draining_in_order() -> None:
    m = machine(Phase.DRAINING)
    assert isinstance(step(m, around(m, "IDLE")), p.Drain)
    assert isinstance(step(m, around(m, "ALLOCATED", jobs={m.slot: "7"})), p.Drain)
    assert step(m, around(m, "ALLOCATED", "DRAIN", jobs={m.slot: "7"})) is None
    assert step(m, around(m, "COMPLETING", "DRAIN")) is None
    assert isinstance(step(m, around(m, "IDLE", "DRAIN")), p.Leave)
    assert to(step(replace(m, left_slurm=True), around(m))) is Phase.TERMINATING


def test_a_node_that_is_down_is_drained_too() -> None:
    m = machine(Phase.DRAINING)
    assert isinstance(step(m, around(m, "DOWN", "NOT_RESPONDING")), p.Drain), "else it takes jobs when it comes back"
    assert isinstance(step(m, around(m, "DOWN", "DRAIN")), p.Leave)


def test_what_was_seen_before_the_drain_does_not_count() -> None:
    m = machine(Phase.DRAINING, drained_at=ago(2))
    old = Fresh(slurm(node(m, "IDLE", "DRAIN")), ago(3))
    assert step(m, around(m, slurm=old)) is None


def test_by_force() -> None:
    m = machine(Phase.DRAINING, removal=Removal.FORCED)
    found = step(m, around(m, "ALLOCATED", jobs={m.slot: "7"}))
    assert isinstance(found, p.Leave)
    assert found.forced
    assert step(m, around(m, slurm=GONE_DARK)) is None
    waited = replace(m, phase_since=ago(90))
    assert to(step(waited, around(m, slurm=GONE_DARK))) is Phase.TERMINATING
    gentle = replace(waited, removal=Removal.BY_USER, phase_since=ago(LONG))
    assert step(gentle, around(m, slurm=GONE_DARK)) is None


def test_terminating_waits_for_its_line_then_asks_for_ever() -> None:
    m = machine(Phase.TERMINATING, tailnet_ip="100.64.0.2", line_published=True)
    assert step(m, around(m, "DOWN", "DRAIN")) is None
    assert isinstance(step(m, around(m, node_addrs={})), p.Terminate)
    assert isinstance(step(replace(m, phase_since=ago(90)), around(m, "DOWN", "DRAIN")), p.Terminate)
    asked = replace(m, terminate_called_at=ago(5))
    assert step(asked, around(m, node_addrs={})) is None
    again = replace(m, terminate_called_at=ago(20))
    assert isinstance(step(again, around(m, node_addrs={})), p.Terminate)
    assert to(step(replace(again, phase_since=ago(LONG)), around(m, node_addrs={}))) is Phase.LOST
    lost = replace(again, phase=Phase.LOST, phase_since=ago(LONG))
    assert isinstance(step(lost, around(m, node_addrs={})), p.Terminate)


@pytest.mark.parametrize(
    ("states", "drains"),
    [
        (("IDLE",), True), (("MIXED",), True), (("IDLE", "DRAIN"), False), (("DOWN",), False),
        (("IDLE", "NOT_RESPONDING"), False),
    ],
)  # fmt: skip
def test_a_node_that_slurm_has_opened_while_it_leaves_is_drained_again(states: tuple[str, ...], drains: bool) -> None:
    """slurmctld's next ping returns a node that was set DOWN by force: its line could never become a free slot."""
    m = machine(
        Phase.TERMINATING, tailnet_ip="100.64.0.2", line_published=True, removal=Removal.FORCED, left_slurm=True
    )
    assert isinstance(step(m, around(m, *states)), p.Drain) is drains
    asked = replace(m, drained_at=ago(-1))
    assert step(asked, around(m, *states)) is None, "what was seen is older than what was done"


def test_never_asked_with_success_it_is_lost_all_the_same() -> None:
    m = machine(Phase.TERMINATING, age_s=LONG)
    assert to(step(m, snapshot(instances={}))) is Phase.LOST, "its provider is not enabled any more"


def test_gone_is_believed_only_of_a_listing_after_the_call() -> None:
    m = machine(Phase.TERMINATING, terminate_called_at=ago(5))
    gone = {"aws": Fresh((instance(m, InstanceState.GONE),), NOW)}
    assert to(step(m, snapshot(instances=gone))) is Phase.GONE
    assert to(step(m, snapshot())) is Phase.GONE
    assert step(m, snapshot(instances={"aws": Fresh((), ago(6))})) is None
    assert step(m, snapshot(instances={"aws": GONE_DARK})) is None
    for state in (InstanceState.UNKNOWN, InstanceState.TERMINATING, InstanceState.STOPPED):
        assert step(m, snapshot(instances={"aws": Fresh((instance(m, state),), NOW)})) is None


def test_a_machine_ended_at_birth_is_not_called_gone_before_it_was_listed() -> None:
    m = machine(Phase.TERMINATING, launch_called_at=ago(10), terminate_called_at=ago(5))
    assert to(step(m, snapshot())) is None


def test_missing_but_heard_after_the_listing_is_not_gone() -> None:
    m = machine(Phase.TERMINATING, terminate_called_at=ago(5), heartbeat_at=NOW)
    assert step(m, snapshot(instances={"aws": Fresh((), ago(1))})) is None


def test_devices_of_what_is_gone() -> None:
    m = machine(Phase.GONE)
    seen = snapshot(tailnet=Fresh(tailnet(peer(m)), NOW))
    assert step(m, seen) is None
    found = step(m, seen, may_change_devices=True)
    assert isinstance(found, p.RemoveDevice) and found.device_ids == (peer(m).id,)
    assert step(replace(m, device_removed=True), seen, may_change_devices=True) is None
    assert step(m, snapshot(), may_change_devices=True) is None


def test_a_container_that_began_with_new_files_leaves_two_devices() -> None:
    m = machine(Phase.GONE)
    first, second = peer(m), replace(peer(m), id="n-second", tailnet_ip="100.64.9.9")
    found = step(m, snapshot(tailnet=Fresh(tailnet(first, second), NOW)), may_change_devices=True)
    assert isinstance(found, p.RemoveDevice) and set(found.device_ids) == {first.id, "n-second"}


@pytest.mark.parametrize("phase", ALL)
def test_every_phase_but_the_last_has_a_way_out(phase: Phase) -> None:
    assert (phase is Phase.GONE) is not bool(MOVES[phase])
    assert Phase.GONE in _reachable(phase) or phase is Phase.GONE


def _reachable(phase: Phase) -> set[Phase]:
    found: set[Phase] = set()
    edge = set(MOVES[phase])
    while edge:
        found |= edge
        edge = {y for x in edge for y in MOVES[x]} - found
    return found
