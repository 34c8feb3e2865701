"""Amounts of money as whole numbers."""

from __future__ import annotations

import pytest

from meshd.model.budget import MICROS, USD_MAX
from meshd.plan.cover import micros


@pytest.mark.parametrize("usd", [1e303, 1.7e308, -1e303])
def test_an_amount_beyond_all_reason_is_a_whole_number_too(usd: float) -> None:
    assert abs(micros(usd)) == round(USD_MAX * MICROS)


def test_all_others_are_exact() -> None:
    assert [micros(usd) for usd in (0.0, 0.1 + 0.2, -2.5, USD_MAX)] == [0, 300_000, -2_500_000, 10**15]
