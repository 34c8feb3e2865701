"""How long something cools down: doubled each time in a row, bounded, and forgotten."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.machine import Machine, Phase
from meshd.plan.cooldowns import FAULTS_MOST, FORGET_AFTER_S, BootPolicy, failures_in_row, paused, refused, tripped
from tests.unit.worlds import NOW, ago, machine

KEY = CooldownKey("offer:aws/r1a/g.1")
POLICY = BootPolicy(failures=3, cooldown_s=600, offer_cooldown_most_s=3600)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def again(previous: Cooldown | None, at: datetime) -> Cooldown:
    return refused(previous, KEY, at, base_s=300, most_s=3600, reason="sold out")


def test_each_refusal_in_a_row_doubles_it_up_to_the_bound() -> None:
    cooldown, waits = None, []
    at = NOW
    for _ in range(7):
        cooldown = again(cooldown, at)
        waits.append((cooldown.until - at).total_seconds())
        at = cooldown.until
    assert waits == [300, 600, 1200, 2400, 3600, 3600, 3600]


def test_a_burst_is_one_refusal() -> None:
    first = again(None, NOW)
    assert again(first, later(1)) == first


def test_it_is_forgotten() -> None:
    first = again(again(None, NOW), later(300))
    assert first.strikes == 2
    assert again(first, first.until + timedelta(seconds=FORGET_AFTER_S)).strikes == 1


def test_another_cause_begins_anew() -> None:
    boots = refused(
        again(None, NOW), KEY, later(10), base_s=600, most_s=3600, reason="no boot", cause=CooldownCause.BOOTS
    )
    assert (boots.strikes, boots.until) == (1, later(610))


def test_a_base_over_the_bound_is_kept() -> None:
    quota = refused(None, KEY, NOW, base_s=1800, most_s=60, reason="quota")
    assert refused(quota, KEY, quota.until, base_s=1800, most_s=60, reason="quota").until == later(3600)


@given(st.lists(st.tuples(st.floats(0, 30_000), st.floats(1, 900), st.floats(0, 9000)), max_size=30))
def test_it_never_is_longer_than_the_bound_nor_shorter_than_the_first(
    history: list[tuple[float, float, float]],
) -> None:
    cooldown, at = None, NOW
    for pause_s, base_s, most_s in history:
        at += timedelta(seconds=pause_s)
        old = cooldown
        cooldown = refused(old, KEY, at, base_s=base_s, most_s=most_s, reason="no")
        if old is None or old.until <= at:
            wait_s = (cooldown.until - at).total_seconds()
            assert base_s - 1e-3 <= wait_s <= max(base_s, most_s) + 1e-3


def pause(previous: Cooldown | None, at: datetime, *, fault: bool) -> Cooldown:
    return paused(previous, CooldownKey("provider:aws"), at, wait_s=10, reason="busy", fault=fault)


def test_who_stumbles_again_and_again_counts_as_one_that_says_no() -> None:
    cooldown, causes = None, []
    for step in range(FAULTS_MOST + 1):
        cooldown = pause(cooldown, later(10 * step), fault=True)
        assert pause(cooldown, later(10 * step + 1), fault=True).strikes == cooldown.strikes, "a burst is one"
        causes.append(cooldown.cause)
    assert causes == [CooldownCause.PAUSE] * FAULTS_MOST + [CooldownCause.REFUSED]
    assert cooldown is not None
    assert pause(cooldown, cooldown.until, fault=True).until == cooldown.until + timedelta(seconds=40)


def test_a_rate_limit_is_no_fault() -> None:
    cooldown = None
    for step in range(30):
        cooldown = pause(cooldown, later(10 * step), fault=False)
        assert cooldown.cause is CooldownCause.PAUSE


# -- machines that fail -----------------------------------------------------------------------------------------------


def failed(index: int, age_s: float) -> Machine:
    return machine(Phase.GONE, index=index, failure=f"no boot {index}", created_at=ago(age_s), instance_id=f"i-{index}")


ROW = [failed(3, 100), failed(2, 200), failed(1, 300)]
"""Newest first."""


def test_a_row_ends_at_the_last_that_was_ready() -> None:
    assert failures_in_row(ROW, ago(1000)) == ROW
    assert failures_in_row([ROW[0], machine(Phase.READY, ready_at=ago(150)), *ROW[1:]], ago(1000)) == ROW[:1]
    assert failures_in_row([machine(Phase.BOOTING, index=4, created_at=ago(1)), *ROW], ago(1000)) == ROW
    assert failures_in_row(ROW, ago(250)) == ROW[:2]


def test_so_many_in_a_row_trip_it() -> None:
    assert tripped(CooldownKey("pool:h100"), ROW[1:], ago(1000), None, NOW, POLICY) is None
    cooldown = tripped(CooldownKey("pool:h100"), ROW, ago(1000), None, NOW, POLICY)
    assert cooldown == Cooldown(
        CooldownKey("pool:h100"),
        later(600),
        "3 machines failed one after another, the last: no boot 3",
        1,
        CooldownCause.BOOTS,
    )
    assert tripped(CooldownKey("pool:h100"), ROW, ago(1000), cooldown, later(1), POLICY) is None, "it is open already"


def test_after_the_cool_down_one_failure_is_enough_and_doubles_it() -> None:
    first = Cooldown(CooldownKey("pool:h100"), ago(50), "3 failed", 1, CooldownCause.BOOTS)
    assert tripped(CooldownKey("pool:h100"), ROW, ago(1000), first, NOW, POLICY) is None, "those were counted"
    probe = failed(4, 20)
    second = tripped(CooldownKey("pool:h100"), [probe, *ROW], ago(1000), first, NOW, POLICY)
    assert second is not None
    assert (second.strikes, second.until) == (2, later(1200))
    assert second.reason == "a machine failed: no boot 4"


def test_bounds_of_pool_and_offer() -> None:
    for key, most_s in ((CooldownKey("pool:h100"), 9600), (KEY, 3600)):
        old = Cooldown(key, ago(50), "failed", 40, CooldownCause.BOOTS)
        cooldown = tripped(key, [failed(4, 20)], ago(1000), old, NOW, POLICY)
        assert cooldown is not None
        assert cooldown.until == later(most_s)


def test_long_after_it_counts_from_nothing() -> None:
    old = Cooldown(CooldownKey("pool:h100"), ago(FORGET_AFTER_S + 10), "failed", 4, CooldownCause.BOOTS)
    assert tripped(CooldownKey("pool:h100"), [failed(4, 20)], ago(1000), old, NOW, POLICY) is None
