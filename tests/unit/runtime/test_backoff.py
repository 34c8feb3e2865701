"""Pauses grow, but never shrink, never pass their limit, and never end in an overflow; on the head and on a node."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.node.meshd_node.backoff import Backoff, jitter
from meshd.runtime.backoff import backoff_s
from meshd.runtime.tasks import RETRY_MAX_S, keep_running
from tests.clocks import HandClock

SECONDS = st.floats(0.01, 86_400)


def test_a_pause_doubles_up_to_its_limit() -> None:
    assert [backoff_s(failures, 5.0, 60.0) for failures in range(7)] == [5, 5, 10, 20, 40, 60, 60]


@given(st.integers(-10, 1_000_000), SECONDS, SECONDS)
def test_a_pause_stays_within_its_limits_however_often_it_failed(failures: int, first_s: float, most_s: float) -> None:
    pause_s = backoff_s(failures, first_s, most_s)
    assert first_s <= pause_s <= max(first_s, most_s)
    assert pause_s <= backoff_s(failures + 1, first_s, most_s)


def test_a_node_waits_as_long_as_the_head_would() -> None:
    backoff = Backoff(0.1, 10.0, lambda: 1.0)
    assert [backoff.next_s() for _ in range(2_000)] == [backoff_s(n, 0.1, 10.0) for n in range(1, 2_001)]
    assert backoff.failures == 2_000
    backoff.reset()
    assert backoff.next_s() == 0.1


def test_a_nodes_pauses_are_spread() -> None:
    factors = [jitter() for _ in range(100)]
    assert all(0.5 <= factor <= 1.5 for factor in factors)
    assert len(set(factors)) > 1


async def test_a_task_that_fails_is_started_again_ever_more_seldom_and_at_once_after_it_went_well() -> None:
    clock, runs = HandClock(), itertools.count(1)

    async def body() -> None:
        run = next(runs)
        if run == 12:
            raise asyncio.CancelledError
        if run != 10:
            raise RuntimeError("broken")

    with pytest.raises(asyncio.CancelledError):
        await keep_running("task", body, clock)
    assert clock.slept == [1, 2, 4, 8, 16, 32, RETRY_MAX_S, RETRY_MAX_S, RETRY_MAX_S, 1, 1]
