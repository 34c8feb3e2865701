"""Why a machine failed, read from its cloud's words, and what cools down after that."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownKey, scopes
from meshd.model.desired import Policy
from meshd.model.machine import FailureCause, Phase
from meshd.model.observed import Fresh
from meshd.model.plan import AskCloud, Move, RecordPeer, Step
from meshd.plan.cooldowns import failures_in_row
from meshd.plan.failure_rules import RULES, Scope, cause_of_end, cause_of_words
from meshd.plan.leaving import AGAIN_AFTER_S, MISSING_AFTER_S
from meshd.plan.lifecycle import next_step
from meshd.plan.placement import cooldown_of
from meshd.plan.plan_input import PlanInput
from meshd.provider_api import InstanceState
from tests.unit.worlds import NOW, OFFER, ago, around, instance, machine, peer, snapshot, tailnet

POLICY = Policy()
CAPACITY, QUOTA = FailureCause.NO_CAPACITY, FailureCause.QUOTA


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("Server.InsufficientInstanceCapacity: There was insufficient capacity available", CAPACITY),
        ("InsufficientInstanceCapacity: We currently do not have sufficient p4d.24xlarge capacity", CAPACITY),
        ("Server.InsufficientHostCapacity", CAPACITY),
        ("UnfulfillableCapacity: Unable to fulfill capacity", CAPACITY),
        ("ZONE_RESOURCE_POOL_EXHAUSTED: The zone does not have enough resources available", CAPACITY),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: (resource type:compute) quota is fine", CAPACITY),
        ("GPU_STOCKOUT", CAPACITY),
        ("The zone 'projects/p/zones/z' does not have enough resources available to fulfill the request.", CAPACITY),
        ("instance-operations/launch/insufficient-capacity: Not enough capacity to fulfill launch request.", CAPACITY),
        ("There are no longer any instances available with the requested specifications.", CAPACITY),
        ("We are currently out of capacity for the selected VM type.", CAPACITY),
        ("QUOTA_EXCEEDED: Quota 'NVIDIA_H100_GPUS' exceeded. Limit: 0.0", QUOTA),
        ("VcpuLimitExceeded: You have requested more vCPU capacity than your current limit", QUOTA),
        ("Client.VolumeLimitExceeded: Volume limit exceeded", QUOTA),
        ("global/quota-exceeded: Quota exceeded.", QUOTA),
        ("your spending limit is reached", QUOTA),
        ("Server.SpotInstanceTermination: Spot instance termination", FailureCause.PREEMPTED),
        ("compute.instances.preempted: Instance was preempted.", FailureCause.PREEMPTED),
        ("Client.InvalidSnapshot.NotFound", FailureCause.IMAGE),
        ("Client.InternalError: Client error on launch", FailureCause.IMAGE),
        ("image docker.io/x/y:1 could not be pulled", FailureCause.IMAGE),
        ("Client.UserInitiatedShutdown: User initiated shutdown", FailureCause.ENDED),
        ("Server.InternalError", FailureCause.ENDED),
        ("terminated", FailureCause.ENDED),
        ("the pod is EXITED", FailureCause.ENDED),
        ("", FailureCause.ENDED),
    ],
)
def test_a_clouds_words(words: str, cause: FailureCause) -> None:
    assert cause_of_words(words) is cause


def test_the_state_and_how_far_it_came_count_too() -> None:
    assert cause_of_end(InstanceState.PREEMPTED, "stopped", joined=True) is FailureCause.PREEMPTED
    assert cause_of_end(InstanceState.STOPPED, "the pod is EXITED", joined=False) is FailureCause.SCRIPT
    assert cause_of_end(InstanceState.STOPPED, "the pod is EXITED", joined=True) is FailureCause.ENDED
    words = "Client.InstanceInitiatedShutdown: Instance initiated shutdown"
    assert cause_of_end(InstanceState.GONE, words, joined=False) is FailureCause.SCRIPT


def test_every_cause_has_its_rule() -> None:
    assert set(RULES) == set(FailureCause)
    assert {cause for cause, rule in RULES.items() if rule.at_once} == {
        FailureCause.NO_CAPACITY, FailureCause.QUOTA, FailureCause.PREEMPTED, FailureCause.IMAGE,
    }  # fmt: skip
    assert RULES[FailureCause.IMAGE].scope is Scope.REGION


def test_what_explains_itself_is_not_counted_in_the_row() -> None:
    said = machine(Phase.GONE, index=2, failure="sold out", failure_cause=FailureCause.NO_CAPACITY, created_at=ago(5))
    silent = machine(Phase.GONE, index=1, failure="not seen", failure_cause=FailureCause.TAILNET, created_at=ago(9))
    assert failures_in_row([said, silent], ago(100)) == [silent]


def test_a_place_cools_down_for_one_pool_alone() -> None:
    _, region, provider, pool = scopes("h100", OFFER)
    assert (region, provider, pool) == (
        CooldownKey("pool:h100@aws/r1"),
        CooldownKey("pool:h100@aws"),
        CooldownKey("pool:h100"),
    )
    for key in (region, provider):
        cooldowns = {key: Cooldown(key, NOW + timedelta(seconds=9), "no boot")}
        assert cooldown_of(OFFER, cooldowns, NOW, "h100") is not None
        assert cooldown_of(OFFER, cooldowns, NOW, "a100") is None
        assert cooldown_of(OFFER, cooldowns, NOW) is None
    assert (region.pool, CooldownKey.of_replacements("h100").pool) == ("h100", "h100")
    assert CooldownKey.of_offer(OFFER).pool == CooldownKey.of_provider("aws").pool == ""


# -- a machine that its cloud's listing lacks -------------------------------------------------------------------------


def step_of(age_s: float, *, asked_s: float | None = None, seen: bool = False) -> Step | None:
    """The next step for a machine that was accepted `age_s` ago and that a present listing lacks."""
    asked_at = None if asked_s is None else ago(asked_s)
    m = machine(Phase.BOOTING, age_s=age_s, launch_called_at=ago(age_s), cloud_asked_at=asked_at)
    peers = [peer(m)] if seen else []
    given = PlanInput.of(snapshot(tailnet=Fresh(tailnet(*peers), NOW)), POLICY, NOW, {})
    return next_step(m, given)


def test_its_cloud_is_asked_before_it_is_given_up() -> None:
    assert step_of(MISSING_AFTER_S - 1) is None, "a listing may lag a little"
    assert isinstance(step_of(MISSING_AFTER_S + 1), AskCloud)
    assert isinstance(step_of(60, seen=True), RecordPeer), "the tailnet shows it"
    assert step_of(60, asked_s=AGAIN_AFTER_S - 1) is None
    assert isinstance(step_of(60, asked_s=AGAIN_AFTER_S), AskCloud)
    long = POLICY.listing_lag_s + 30
    assert isinstance(step_of(long), AskCloud)
    gone = step_of(long, asked_s=1)
    assert isinstance(gone, Move)
    assert gone.cause is FailureCause.ENDED


def test_the_cloud_says_that_it_is_there() -> None:
    m = machine(Phase.READY, heartbeat_at=ago(900), cloud_asked_at=ago(5), cloud_confirmed_at=ago(5))
    missing = around(m, instances={"aws": Fresh((), NOW)})
    assert isinstance(next_step(m, PlanInput.of(missing, POLICY, NOW, {})), p.RecordFitness), "it is silent, and kept"
    later = replace(m, cloud_asked_at=ago(5), cloud_confirmed_at=ago(POLICY.listing_lag_s + 1))
    assert isinstance(next_step(later, PlanInput.of(missing, POLICY, NOW, {})), Move)


@pytest.mark.parametrize("state", [InstanceState.GONE, InstanceState.FAILED, InstanceState.TERMINATING])
def test_the_clouds_words_go_with_the_failure(state: InstanceState) -> None:
    m = machine(Phase.BOOTING, age_s=30)
    words = "Server.InsufficientInstanceCapacity: none left"
    found = next_step(m, PlanInput.of(around(m, instances={"aws": Fresh((instance(m, state, reason=words),), NOW)},
                                         tailnet=Fresh(tailnet(), NOW)), POLICY, NOW, {}))  # fmt: skip
    assert isinstance(found, Move)
    assert (found.cause, found.vendor_words) == (CAPACITY, words)
    assert "auth key" not in found.failure, "no guess where the cloud says why"
