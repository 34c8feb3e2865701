"""The time that is billed for a machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.plan.billing import billed_s, paid_for_s
from meshd.provider_api import ProviderCapabilities

SECONDS = ProviderCapabilities(billing_increment_s=1.0, billing_minimum_s=60.0)
MINUTES = ProviderCapabilities(billing_increment_s=60.0)
HOURS = ProviderCapabilities(billing_increment_s=3600.0)


@pytest.mark.parametrize(
    ("capabilities", "run_s", "billed"),
    [
        (SECONDS, 0.0, 0.0),
        (SECONDS, 5.2, 60.0),
        (SECONDS, 61.2, 62.0),
        (MINUTES, 1.0, 60.0),
        (MINUTES, 60.0, 60.0),
        (MINUTES, 60.5, 120.0),
        (HOURS, 3600.000_000_4, 3600.0),
        (HOURS, 3601.0, 7200.0),
        (ProviderCapabilities(), 90.0, 90.0),
    ],
)
def test_time_is_rounded_up(capabilities: ProviderCapabilities, run_s: float, billed: float) -> None:
    assert billed_s(run_s, capabilities) == billed


def test_what_is_paid_for_already() -> None:
    assert paid_for_s(600.0, HOURS) == 3000.0
    assert paid_for_s(60.0, MINUTES) == 0.0
    assert paid_for_s(20.0, SECONDS) == 40.0
    assert paid_for_s(-3000.0, HOURS) == 0.0, "the head's clock is behind its cloud's"


@given(st.floats(0.001, 1e8), st.sampled_from([SECONDS, MINUTES, HOURS]))
def test_never_billed_for_less_than_it_ran_nor_for_one_increment_more(run_s: float, by: ProviderCapabilities) -> None:
    billed = billed_s(run_s, by)
    assert billed >= run_s - 1e-3
    assert billed < max(run_s + by.billing_increment_s + 1e-3, by.billing_minimum_s + 1e-3)
