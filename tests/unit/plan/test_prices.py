"""Old prices: the warnings about them, and the offers that are not rented."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.codes import ProblemCode
from meshd.config import PriceSettings, Settings
from meshd.daemon.head_api.plan_views import alternatives
from meshd.daemon.machines import problems
from meshd.daemon.machines.desired_state import pools
from meshd.daemon.prices.prices import stale
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh
from meshd.model.plan import RequestMachine
from meshd.plan.explanation import constraints
from meshd.plan.plan_summary import summary_of
from meshd.plan.planner import plan
from meshd.plan.prices import has_budget, is_stale, price_age_s, price_words, too_old
from meshd.provider_api import PriceSource
from tests.unit.worlds import NOW, OFFER, machine, snapshot

DAY_S = 86400.0
POOL = Pool("h100", "h100", 1, 8, ("aws",))
CAPPED = replace(POOL, max_usd_per_gpu_hour=3.0)
OLD = replace(OFFER, price_as_of=NOW - timedelta(days=31), price_source=PriceSource.SHIPPED)
NEW = replace(OFFER, price_as_of=NOW - timedelta(days=30))


@given(st.floats(0, 1e8), st.floats(0, 1e8))
def test_stale_is_older_than_the_limit(age_s: float, limit_s: float) -> None:
    offer = replace(OFFER, price_as_of=NOW - timedelta(seconds=age_s))
    found = price_age_s(offer, NOW)
    assert found == pytest.approx(age_s, abs=1e-3)
    assert is_stale(offer, NOW, limit_s) is (found > limit_s)


def test_no_date_and_a_date_of_the_future_are_not_stale() -> None:
    own = replace(OFFER, price_source=PriceSource.SETTINGS)
    assert price_age_s(own, NOW) is None
    assert not is_stale(own, NOW, 1.0)
    assert price_age_s(replace(OFFER, price_as_of=NOW + timedelta(days=1)), NOW) == 0.0


@pytest.mark.parametrize(
    ("pool", "target", "limited"),
    [
        (POOL, None, False),
        (POOL, Target("h100", 1), False),
        (CAPPED, None, True),
        (replace(POOL, max_usd_per_hour=9.0), Target("h100", 1), True),
        (POOL, Target("h100", 1, max_usd_per_gpu_hour=1.0), True),
        (POOL, Target("h100", 1, max_usd_per_hour=1.0), True),
    ],
)
def test_any_limit_is_a_budget(pool: Pool, target: Target | None, limited: bool) -> None:
    assert has_budget(pool, target) is limited
    strict = replace(pool, prices_since=NOW - timedelta(days=30))
    assert bool(too_old(OLD, strict, target)) is limited
    assert not too_old(NEW, strict, target)
    assert not too_old(replace(OLD, price_as_of=None, price_source=PriceSource.SETTINGS), strict, target)
    assert not too_old(OLD, pool, target), "any age will do"


def test_an_old_price_is_passed_over_where_the_settings_say_so() -> None:
    strict = replace(CAPPED, prices_since=NOW - timedelta(days=30))
    cheap = replace(OLD, usd_per_hour=1.0)
    found = plan(desired(strict), [], snapshot(offers={"aws": Fresh((cheap, replace(NEW, zone="r1b")), NOW)}), NOW)
    assert {step.offer.zone for step in found.steps if isinstance(step, RequestMachine)} == {"r1b"}
    found = plan(desired(strict), [], snapshot(offers={"aws": Fresh((cheap,), NOW)}), NOW)
    assert not found.steps
    assert found.warnings[0].reason.endswith(
        "has a price of 2026-01-29, too old for a limit in USD "
        "(`meshctl prices refresh aws`, or set providers.aws.prices)"
    )
    assert "prices of 2026-01-30 or newer" in constraints(strict, None)
    assert not [line for line in constraints(replace(strict, max_usd_per_gpu_hour=None), None) if "newer" in line]


def test_alternatives_are_marked() -> None:
    seen = snapshot(offers={"aws": Fresh((OLD, replace(NEW, zone="r1b")), NOW)})
    rows = alternatives(["h100"], (), seen, desired(CAPPED), NOW)
    assert {row.region: row.price_stale for row in rows} == {"r1a": True, "r1b": False}


def test_the_settings_decide_which_prices_are_too_old() -> None:
    settings = Settings(
        pools={"h100": {"gpu": "h100"}}, providers={"aws": {}}, prices={"budget_needs_fresh": True, "stale_after_d": 2}
    )  # type: ignore[arg-type]
    assert pools(settings, ["aws"], NOW, shapes_fixed=False)["h100"].prices_since == NOW - timedelta(days=2)
    loose = settings.model_copy(update={"prices": PriceSettings()})
    assert pools(loose, ["aws"], NOW, shapes_fixed=False)["h100"].prices_since is None


def test_words_for_the_journal() -> None:
    assert price_words(OLD) == "2 USD/h, a price of 2026-01-29"
    assert price_words(replace(OFFER, usd_per_hour=1.23456, price_source=PriceSource.SETTINGS)) == (
        "1.235 USD/h by the settings"
    )
    assert price_words(OFFER) == "2 USD/h"


def desired(pool: Pool) -> Desired:
    return Desired("lab", {"h100": pool}, {"h100": Target("h100", 2, at=NOW)})


def test_the_plan_tells_of_old_prices_under_a_limit() -> None:
    seen = snapshot(offers={"aws": Fresh((OLD,), NOW)})
    found = plan(desired(CAPPED), [], seen, NOW)
    assert [type(step) for step in found.steps] == [RequestMachine] * 2, "it is only told"
    (warning,) = summary_of(found, []).warnings
    assert warning == (
        "h100: the limit is held against prices of aws of 2026-01-29, which may have risen since "
        "(`meshctl prices refresh aws`, or set providers.aws.prices)"
    )
    assert not plan(desired(POOL), [], seen, NOW).warnings, "nobody asked for a limit"
    assert not plan(desired(CAPPED), [], snapshot(offers={"aws": Fresh((NEW,), NOW)}), NOW).warnings
    assert not list(problems.pools(desired(CAPPED), [], found.warnings, seen)), "nothing is held back by it"


def test_the_status_tells_of_machines_that_were_rented_by_old_prices() -> None:
    def rented(index: int, age_d: float) -> Machine:
        """A machine, and how old its price was on the day when it was rented."""
        made = machine(Phase.READY, index=index)
        return replace(made, offer=replace(OFFER, price_as_of=made.created_at - timedelta(days=age_d)))

    fleet = [rented(1, 31), rented(2, 31), rented(3, 29), replace(rented(4, 31), phase=Phase.GONE)]
    (problem,) = stale(desired(CAPPED), fleet)
    assert (problem.code, problem.severity) == (ProblemCode.PRICES_STALE, "warning")
    assert (problem.pool, problem.blocking) == ("h100", False)
    assert "2026-01-29" in problem.text
    assert "meshctl prices refresh aws" in problem.cure
    assert not list(stale(desired(POOL), fleet))
    assert not list(stale(desired(CAPPED), [rented(3, 29)])), "it grows no older: the machine's price is what it was"
