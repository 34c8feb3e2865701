"""A create call without a clear answer: the steps while it may still make a machine, and how long that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Policy
from meshd.model.machine import FailureCause, Machine, Phase, Removal
from meshd.model.observed import Fresh
from meshd.plan.lifecycle import next_step
from meshd.plan.plan_input import PlanInput
from meshd.plan.unclear_launch import settled_at
from meshd.provider_api import Instance
from tests.unit.worlds import GONE_DARK, NOW, OFFER, ago, around, instance, machine, snapshot

POLICY = Policy(launch_timeout_s=100, launch_settle_s=10, listing_lag_s=50)
REPEATS = replace(POLICY, idempotent_launch=frozenset({"aws"}))


def unclear(called_s: float, unclear_s: float | None = None, **changes: Any) -> Machine:
    """A machine whose create call went out `called_s` ago, and had an unclear answer `unclear_s` ago."""
    unclear_at = None if unclear_s is None else ago(unclear_s)
    return machine(
        Phase.LAUNCHING, launch_called_at=ago(called_s), age_s=called_s, create_unclear_at=unclear_at, **changes
    )


def step(
    m: Machine,
    *listed: Instance,
    policy: Policy = POLICY,
    read_s: float | None = 0,
    cooldowns: dict[CooldownKey, Cooldown] | None = None,
) -> p.Step | None:
    """The next step, with a listing that was read `read_s` ago; None: it cannot be read."""
    seen = GONE_DARK if read_s is None else Fresh(listed, ago(read_s))
    return next_step(m, PlanInput.of(snapshot(instances={"aws": seen}), policy, NOW, cooldowns or {}))


def to(found: p.Step | None) -> Phase | None:
    assert found is None or isinstance(found, p.Move), found
    return found.to if found else None


def test_one_that_is_listed_is_the_machines() -> None:
    for m in (unclear(5), unclear(1000, 1000), unclear(5, removal=Removal.BY_USER), unclear(5, refusal="no_capacity")):
        found = step(m, instance(m))
        assert isinstance(found, p.Adopt), m


def test_of_two_the_oldest_is() -> None:
    m = unclear(100)
    found = step(
        m, replace(instance(m), id="i-2", launched_at=ago(5)), replace(instance(m), id="i-1", launched_at=ago(9))
    )
    assert isinstance(found, p.Adopt)
    assert found.instance.id == "i-1"


@pytest.mark.parametrize("m", [unclear(170, 60), unclear(160)])
def test_it_is_settled_by_a_listing_that_is_so_late_that_it_would_show_it(m: Machine) -> None:
    """60 s after an unclear answer; after one that never came, 60 s after the call's own deadline."""
    assert settled_at(m, POLICY) == NOW
    assert step(m) is None, "this very moment may be too early"
    later = replace(m, launch_called_at=ago(161), create_unclear_at=ago(61) if m.create_unclear_at else None)
    assert to(step(later)) is Phase.REQUESTED
    assert step(later, read_s=1) is None, "that listing is older"
    assert step(later, read_s=None) is None, "who cannot look has not seen that it is missing"
    assert to(step(replace(later, removal=Removal.BY_USER))) is Phase.GONE
    assert to(step(replace(later, refusal="no_capacity", vendor_words="none left"))) is Phase.GONE
    assert to(step(replace(later, launch_attempts=5))) is Phase.GONE


def test_a_machine_that_came_to_the_head_was_made_so_its_name_is_not_used_again() -> None:
    m = unclear(161, 61)
    came = replace(m, head_reached_at=ago(90))
    assert step(replace(came, launch_called_at=ago(160), create_unclear_at=ago(60))) is None, "it may show"
    found = step(came)
    assert isinstance(found, p.Move)
    assert (found.to, found.cause) == (Phase.GONE, FailureCause.ENDED)
    assert isinstance(step(came, instance(came)), p.Adopt)


def test_nothing_is_repeated_where_that_could_make_two() -> None:
    for age_s in (1, 50, 100, 150):
        assert step(unclear(age_s)) is None
        assert step(unclear(age_s, min(age_s, 50))) is None


def test_where_it_cannot_the_same_call_goes_out_again_at_once_and_less_often_each_time() -> None:
    assert step(unclear(4, 4), policy=REPEATS) is None
    assert isinstance(step(unclear(5, 4), policy=REPEATS), p.Launch)
    assert isinstance(step(unclear(5), policy=REPEATS), p.Launch), "meshd was killed meanwhile"
    assert step(unclear(5, 5, launch_attempts=3), policy=REPEATS) is None
    assert isinstance(step(unclear(20, 20, launch_attempts=3), policy=REPEATS), p.Launch)
    assert step(unclear(55, 55, launch_attempts=5), policy=REPEATS) is None, "it is only looked for from here on"
    asked = unclear(50, 50)
    assert step(replace(asked, create_repeated_at=ago(3)), policy=REPEATS) is None


def test_what_is_not_wanted_was_refused_or_is_left_alone_is_not_asked_for_again() -> None:
    assert step(unclear(50, 50, removal=Removal.SCALE_DOWN), policy=REPEATS) is None
    assert step(unclear(50, 50, refusal="no_capacity"), policy=REPEATS) is None
    for key, cause in (
        (CooldownKey("provider:aws"), CooldownCause.PAUSE),
        (CooldownKey("provider:aws"), CooldownCause.REFUSED),
        (CooldownKey.of_offer(OFFER), CooldownCause.REFUSED),
    ):
        assert (
            step(unclear(50, 50), policy=REPEATS, cooldowns={key: Cooldown(key, ago(-60), "no", cause=cause)}) is None
        )


def test_a_cloud_that_never_tells_is_given_up_only_when_nothing_new_can_come() -> None:
    long = replace(POLICY, boot_timeout_s=50)
    assert step(unclear(159), policy=long, read_s=None) is None, "over its deadline, but not settled"
    assert to(step(unclear(161), policy=long, read_s=None)) is Phase.TERMINATING


def test_one_that_was_given_up_is_looked_for_until_it_surely_is_not_there() -> None:
    m = machine(Phase.TERMINATING, instance_id="", launch_called_at=ago(160))
    assert step(m) is None
    assert to(step(replace(m, launch_called_at=ago(161)))) is Phase.GONE
    assert isinstance(step(m, instance(m)), p.Adopt)


def test_a_machine_that_shows_is_ended_when_it_is_not_wanted_any_more() -> None:
    booting = machine(Phase.BOOTING, removal=Removal.BY_USER)
    assert to(next_step(booting, PlanInput.of(around(booting), POLICY, NOW, {}))) is Phase.TERMINATING
