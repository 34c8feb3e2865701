"""A clock that was set is told from one that is slewed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from meshd.runtime.clock import CLOCK_STEP, ClockSteps
from tests.clocks import HandClock


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1), CLOCK_STEP, -CLOCK_STEP])
def test_a_step_is_told_until_it_is_dealt_with(step: timedelta) -> None:
    clock = HandClock()
    steps = ClockSteps(clock)
    clock.t_s += 1000
    assert not steps.last
    clock.shift = step
    clock.t_s += 5
    assert steps.last == steps.last == step
    steps.taken()
    assert not steps.last


def test_slewing_is_no_step_however_far_it_goes() -> None:
    clock = HandClock()
    steps = ClockSteps(clock)
    for _ in range(100):
        clock.t_s += 1
        clock.shift += CLOCK_STEP / 2
        assert not steps.last
