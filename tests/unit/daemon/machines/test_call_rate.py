"""The rate of a cloud that limits calls is found out of its refusals."""

from __future__ import annotations

import heapq
import random

import pytest

from meshd.daemon.machines.launch_queue import FIRST_AT_ONCE, FORGET_AFTER_S, CallRate
from tests.unit.daemon.standins import Bucket

AT_ONCE = 64
"""As the settings allow."""


def drive(rate: CallRate, bucket: Bucket, until_s: float, answer_s: float, calls: int = 10**6) -> tuple[int, int]:
    """A caller that always has more to ask: calls that were taken and refused until then."""
    now_s, in_flight, taken, refused = 0.0, 0, 0, 0
    answers: list[tuple[float, float, bool]] = []
    while now_s < until_s and taken < calls:
        wait_s = rate.wait_s(now_s, in_flight) if in_flight < AT_ONCE else None
        if wait_s == 0:
            rate.sent(now_s)
            heapq.heappush(answers, (now_s + answer_s, now_s, bucket.take(now_s)))
            in_flight += 1
            continue
        soon = [answers[0][0]] if answers else []
        now_s = min([*soon, *([now_s + wait_s] if wait_s is not None else [])])
        while answers and answers[0][0] <= now_s:
            _, sent_s, fine = heapq.heappop(answers)
            in_flight -= 1
            if fine:
                taken += 1
                rate.taken(sent_s)
            else:
                refused += 1
                rate.refused(sent_s, now_s)
    return taken, refused


@pytest.mark.parametrize("answer_s", [0.02, 0.2, 1.0])
@pytest.mark.parametrize(("burst", "per_s"), [(5, 2.0), (1, 1.0), (5, 0.5), (20, 10.0), (100, 5.0), (2, 0.1)])
def test_calls_go_at_the_clouds_own_rate(burst: float, per_s: float, answer_s: float) -> None:
    until_s = max(231.0, 40 / per_s)
    taken, refused = drive(CallRate(), Bucket(burst, per_s), until_s, answer_s)
    share = 0.9 if burst > 1 else 0.8  # a bucket of one token forgives no probe
    assert taken >= share * (burst + per_s * until_s)
    assert refused <= max(40, 0.1 * taken)


def test_a_cloud_that_does_not_limit_is_not_kept_waiting() -> None:
    rate = CallRate()
    taken, refused = drive(rate, Bucket(10**6, 0), 10.0, 0.2, calls=500)
    assert (taken >= 500, refused, rate.per_s) == (True, 0, None)
    assert rate.at_once_most > 64, "as many at once as the settings allow"
    assert CallRate().wait_s(0.0, FIRST_AT_ONCE) is None, "at first a few, so that few are refused"


def test_a_limit_that_rises_is_noticed() -> None:
    rate, bucket = CallRate(), Bucket(5, 1.0)
    drive(rate, bucket, 120.0, 0.1)
    bucket.per_s, bucket.at_s, bucket.tokens = 50.0, 0.0, 5.0
    rate_before = rate.per_s
    for second in range(120, 1200):
        rate.sent(float(second))
        rate.taken(float(second))
    assert rate.per_s is not None
    assert rate_before is not None
    assert rate.per_s > 2 * rate_before


def test_a_spacing_that_is_known_is_kept_from_the_first_call() -> None:
    rate = CallRate(spacing_s=12.5)
    sent = []
    now_s = 0.0
    for _ in range(4):
        now_s += rate.wait_s(now_s, 0) or 0.0
        rate.sent(now_s)
        rate.taken(now_s)
        sent.append(now_s)
    assert sent == [0.0, 12.5, 25.0, 37.5]


def test_when_the_cloud_says_when_to_come_again() -> None:
    rate = CallRate()
    rate.sent(0.0)
    rate.refused(0.0, 0.5, retry_after_s=30.0)
    assert rate.wait_s(0.5, 0) == 30.0


def test_a_burst_that_was_refused_is_one_refusal() -> None:
    rate = CallRate()
    for _ in range(8):
        rate.sent(0.0)
    for _ in range(8):
        rate.refused(0.0, 0.1)
    first = rate.per_s
    assert first == 1.0


def test_after_a_long_rest_it_begins_anew() -> None:
    rate = CallRate()
    rate.sent(0.0)
    rate.refused(0.0, 0.1)
    rate.sent(FORGET_AFTER_S + 1)
    assert rate.per_s is None


@pytest.mark.parametrize("seed", range(4))
def test_turns_that_a_busy_head_misses_are_made_good(seed: int) -> None:
    """Each turn comes late, by 0.2 s on average, and answers as well."""
    rng, rate, bucket = random.Random(seed), CallRate(), Bucket(5, 2.0)
    now_s, turn_s, taken, refused = 0.0, None, 0, 0
    answers: list[tuple[float, float, bool]] = []
    while now_s < 231.0:
        wait_s = rate.wait_s(now_s, len(answers))
        if wait_s == 0:
            rate.sent(now_s)
            heapq.heappush(answers, (now_s + rng.uniform(0.1, 0.6), now_s, bucket.take(now_s)))
            turn_s = None
            continue
        if wait_s is not None and turn_s is None:
            turn_s = now_s + wait_s + rng.expovariate(5)
        if turn_s is not None and (not answers or turn_s <= answers[0][0]):
            now_s, turn_s = turn_s, None
            continue
        now_s, sent_s, fine = heapq.heappop(answers)
        taken, refused = taken + fine, refused + (not fine)
        if fine:
            rate.taken(sent_s)
        else:
            rate.refused(sent_s, now_s)
    assert taken >= 0.9 * (5 + 2.0 * 231)
    assert refused <= 40


@pytest.mark.parametrize("spacing_s", [1.3, 12.5])
@pytest.mark.parametrize("pause_s", [0.0, 60.0])
def test_a_refusal_beside_a_known_spacing_costs_two_turns_at_most(spacing_s: float, pause_s: float) -> None:
    """However many were taken before it, and whatever pauses there were."""
    rate, now_s = CallRate(spacing_s), 1000.0
    for _ in range(12):
        now_s += (rate.wait_s(now_s, 0) or 0.0) + pause_s
        rate.sent(now_s)
        rate.taken(now_s)
    for wait_s in (spacing_s, 2 * spacing_s):
        now_s += rate.wait_s(now_s, 0) or 0.0
        rate.sent(now_s)
        rate.refused(now_s, now_s)
        assert rate.wait_s(now_s, 0) == pytest.approx(wait_s)
    now_s += rate.wait_s(now_s, 0) or 0.0
    rate.sent(now_s)
    rate.taken(now_s)
    assert rate.per_s == pytest.approx(1 / spacing_s), "the spacing is as before"


def test_time_in_which_nothing_was_wanted_measures_nothing() -> None:
    rate, now_s = CallRate(), 0.0
    rate.sent(now_s)
    rate.refused(now_s, 0.1)
    for _ in range(8):
        now_s += 300.0
        rate.sent(now_s)
        rate.taken(now_s)
    before = rate.per_s
    rate.sent(now_s)
    rate.refused(now_s + 0.01, now_s + 0.1)
    assert before is not None and rate.per_s is not None
    assert rate.per_s >= before / 2
