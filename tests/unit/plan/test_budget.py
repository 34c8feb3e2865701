"""What the budget allows: over all pools and in one; by hour, day and month; and what happens at a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from meshd.codes import WarningCode
from meshd.model import plan as p
from meshd.model.budget import MICROS, Budget, BudgetLimits, Charge, Period, Spent
from meshd.model.desired import Desired, Pool, Target
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import Fresh
from meshd.plan.alternatives import OfferRule, deciding_rule
from meshd.plan.budget import room, warned_of, withdrawn
from meshd.plan.ledger import budget_of
from meshd.plan.plan_input import PlanInput
from meshd.plan.planner import plan
from meshd.plan.scale import growth_of
from tests.unit.worlds import GONE_DARK, NOW, OFFER, ago, around, instance, machine, node, slurm, snapshot

POOL = Pool("h100", "h100", 1, 10, ("aws",))
OTHER = replace(POOL, name="spare")


def budget(
    limits: Mapping[str, BudgetLimits], *machines: Machine, spent: Mapping[str, Spent] | None = None,
    least_s: Mapping[str, float] | None = None,
) -> Budget:  # fmt: skip
    return budget_of(limits, spent or {}, machines, least_s or {}, NOW)


def decided(found: Budget, targets: Mapping[str, int], *machines: Machine) -> p.Plan:
    seen = snapshot(
        instances={"aws": Fresh(tuple(instance(m) for m in machines if m.instance_id), NOW)},
        offers={"aws": Fresh((OFFER,), NOW)},
        slurm=Fresh(slurm(*(node(m) for m in machines if m.tailnet_ip)), NOW),
    )
    desired = Desired(
        "lab", {"h100": POOL, "spare": OTHER}, {n: Target(n, gpus) for n, gpus in targets.items()}, budget=found
    )
    return plan(desired, machines, seen, NOW)


def rents(found: p.Plan) -> list[str]:
    return [step.subject for step in found.steps if isinstance(step, p.RequestMachine)]


def test_the_limit_of_an_hour_counts_all_machines_of_all_pools() -> None:
    there = machine(Phase.READY)
    found = decided(budget({"": BudgetLimits(usd_per_hour=7.0)}, there), {"h100": 3, "spare": 3}, there)
    assert rents(found) == ["h100-2", "h100-3"]
    assert [(w.subject, w.code, w.cure) for w in found.warnings] == [
        ("spare", WarningCode.BUDGET, "raise budget.usd_per_hour")
    ]


def test_the_limit_of_one_pool_holds_beside_the_one_over_all() -> None:
    limits = {"": BudgetLimits(usd_per_hour=100.0), "spare": BudgetLimits(usd_per_hour=2.0)}
    found = decided(budget(limits), {"h100": 2, "spare": 3})
    assert rents(found) == ["h100-1", "h100-2", "spare-1"]
    assert [w.cure for w in found.warnings] == ["raise pools.spare.budget.usd_per_hour"]


def test_a_limit_in_the_middle_of_a_scale_up() -> None:
    """Each machine of 2 USD per hour is paid for ten minutes at least: a third of a USD."""
    limits = {"": BudgetLimits(usd_per_month=1.01)}
    assert len(rents(decided(budget(limits), {"h100": 8}))) == 3
    there = [machine(Phase.BOOTING, index=i, launched_at=ago(300)) for i in (1, 2)]
    spent = {"": Spent(day=333_333, month=333_333)}
    found = decided(budget(limits, *there, spent=spent), {"h100": 8}, *there)
    assert len(rents(found)) == 1
    assert found.warnings[0].code is WarningCode.BUDGET
    assert "2026-04-01 at 00:00 UTC" in found.warnings[0].reason


def test_machines_that_fit_exactly_are_not_withdrawn_again() -> None:
    """Three of a third of a USD each fit into one USD, whatever the rounding."""
    limits = {"": BudgetLimits(usd_per_day=1.0)}
    assert len(rents(decided(budget(limits), {"h100": 8}))) == 3
    waiting = [machine(Phase.REQUESTED, index=i, created_at=ago(10)) for i in (1, 2, 3)]
    found = decided(budget(limits, *waiting), {"h100": 8}, *waiting)
    assert [step.subject for step in found.steps] == [m.name for m in waiting]
    assert {type(step) for step in found.steps} == {p.Launch}


def test_what_a_provider_bills_at_least_is_kept_back() -> None:
    limits = {"": BudgetLimits(usd_per_day=3.0)}
    assert len(rents(decided(budget(limits), {"h100": 8}))) == 8
    assert len(rents(decided(budget(limits, least_s={"aws": 3600.0}), {"h100": 8}))) == 1


def test_an_explanation_names_the_budget() -> None:
    desired = Desired("lab", {"h100": POOL}, {"h100": Target("h100", 2)}, budget=budget({"": BudgetLimits(1.0)}))
    given = PlanInput.of(snapshot(), desired.policy, NOW, {})
    growth = growth_of(desired, POOL, [], snapshot(), given)
    assert growth is not None
    assert deciding_rule(OFFER, growth.selection())[0] is OfferRule.BUDGET


def test_what_was_spent_before_midnight_does_not_count_after_it() -> None:
    limits = {"": BudgetLimits(usd_per_day=1.0, usd_per_month=10.0)}
    spent = {"": Spent(day=MICROS, month=MICROS)}
    before = datetime(2026, 2, 28, 23, 59, tzinfo=UTC)
    full = budget_of(limits, spent, (), {}, before)
    found = room(full, "h100", ("aws",), before)
    assert found is not None
    assert (found.usd_per_hour, found.binding.until) == (0.0, datetime(2026, 3, 1, tzinfo=UTC))
    found = room(full, "h100", ("aws",), before + timedelta(minutes=2))
    assert found is not None
    assert found.usd_per_hour == pytest.approx(6.0), "a USD for ten minutes"
    found = room(full, "h100", ("aws",), before - timedelta(days=1))
    assert found is not None, "the clock was set back"
    assert found.usd_per_hour == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("period", "at", "since", "until"),
    [
        (Period.DAY, "2026-12-31T23:59:59", "2026-12-31", "2027-01-01"),
        (Period.MONTH, "2026-12-31T23:59:59", "2026-12-01", "2027-01-01"),
        (Period.MONTH, "2026-02-01T00:00:00", "2026-02-01", "2026-03-01"),
        (Period.MONTH, "2026-01-30T00:00:00", "2026-01-01", "2026-02-01"),
    ],
)
def test_days_and_months_are_those_of_utc(period: Period, at: str, since: str, until: str) -> None:
    moment = datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert period.since(moment) == datetime.fromisoformat(since).replace(tzinfo=UTC)
    assert period.until(moment) == datetime.fromisoformat(until).replace(tzinfo=UTC)


def test_an_order_that_waits_is_withdrawn_when_the_limit_is_reached() -> None:
    waiting = [machine(Phase.REQUESTED, index=i, created_at=ago(10 - i)) for i in (1, 2, 3)]
    found = decided(budget({"": BudgetLimits(usd_per_hour=4.5)}, *waiting), {"h100": 3}, *waiting)
    moves = [(step.subject, step.to) for step in found.steps if isinstance(step, p.Move)]
    assert moves == [(waiting[2].name, Phase.GONE)]
    assert [s.subject for s in found.steps if isinstance(s, p.Launch)] == [m.name for m in waiting[:2]]


def test_an_order_of_another_pool_is_not_withdrawn_for_a_pools_limit() -> None:
    waiting = machine(Phase.REQUESTED, created_at=ago(10))
    found = decided(budget({"spare": BudgetLimits(usd_per_hour=1.0)}, waiting), {"h100": 1}, waiting)
    assert [s.subject for s in found.steps if isinstance(s, p.Launch)] == [waiting.name]


def test_an_order_that_waits_is_withdrawn_when_the_pools_own_limit_is_reached() -> None:
    """A machine of 2 USD per hour was found since."""
    found = machine(Phase.BOOTING, index=4)
    waiting = [machine(Phase.REQUESTED, index=i, created_at=ago(10 - i)) for i in (1, 2)]
    for by_queue, pools, targets in ((False, 4.5, None), (True, 4.5, None), (False, None, 4.5)):
        mine = [replace(m, by_queue=by_queue) for m in waiting]
        pool, target = replace(POOL, max_usd_per_hour=pools), Target("h100", 3, max_usd_per_hour=targets)
        desired = Desired("lab", {"h100": pool}, {"h100": target})
        assert [m.subject for m in withdrawn(desired, [found, *mine], NOW)] == [waiting[1].name]
    of_person = Desired("lab", {"h100": POOL}, {"h100": Target("h100", 3, max_usd_per_hour=4.5)})
    queued = [replace(m, by_queue=True) for m in waiting]
    assert not list(withdrawn(of_person, [found, *queued], NOW)), "the limit of a person's order is not for jobs"
    assert not list(withdrawn(of_person, waiting, NOW))


def test_orders_for_one_job_are_withdrawn_together() -> None:
    mine = [machine(Phase.REQUESTED, index=i, by_queue=True, for_jobs=("7",), created_at=ago(9)) for i in (1, 2)]
    other = machine(Phase.REQUESTED, index=3, by_queue=True, for_jobs=("8",), created_at=ago(5))
    for desired in (
        Desired("lab", {"h100": replace(POOL, max_usd_per_hour=3.0)}, {}),
        Desired("lab", {"h100": POOL}, {}, budget=budget({"": BudgetLimits(usd_per_hour=3.0)}, *mine, other)),
    ):
        assert [move.subject for move in withdrawn(desired, [*mine, other], NOW)] == [m.name for m in mine]


def killed(*busy: int, spent: int, kill_at: float | None = 1.2, dark: bool = False) -> list[tuple[str, object]]:
    machines = [machine(Phase.READY, index=i) for i in (1, 2)]
    seen = replace(
        around(machines[0]),
        instances={"aws": Fresh(tuple(map(instance, machines)), NOW)},
        slurm=GONE_DARK if dark else Fresh(slurm(*map(node, machines), jobs={f"h100-{i}": f"{i}" for i in busy}), NOW),
    )
    found = budget({"": BudgetLimits(usd_per_day=1.0, kill_at=kill_at)}, *machines, spent={"": Spent(spent, spent)})
    desired = Desired("lab", {"h100": POOL}, {"h100": Target("h100", 2)}, budget=found)
    steps = plan(desired, machines, seen, NOW).steps
    return [(s.subject, s.removal) for s in steps if isinstance(s, p.Remove)]


def test_at_kill_at_machines_without_a_job_go_first_and_then_all() -> None:
    one, two = (machine(Phase.READY, index=i).name for i in (1, 2))
    assert killed(1, spent=1_200_000) == [(two, Removal.FORCED)]
    assert killed(1, 2, spent=1_200_000) == [(one, Removal.FORCED), (two, Removal.FORCED)]
    assert killed(1, spent=1_199_999) == []
    assert killed(1, 2, spent=9_000_000, kill_at=None) == [], "a limit alone ends nothing"


def test_from_warn_at_on_a_limit_is_told() -> None:
    limits = {"": BudgetLimits(usd_per_day=1.0, usd_per_month=2.0, warn_at=0.5)}
    found = budget(limits, spent={"": Spent(499_999, 1_000_000)})
    assert [one.setting for one in warned_of(found, NOW)] == ["budget.usd_per_month"]


def test_what_a_machine_costs_at_least_ends_with_its_least_time() -> None:
    charge = Charge("m", "h100", 3_600_000, ago(400), 600.0)
    assert charge.ahead(NOW) == 200_000
    assert charge.ahead(NOW + timedelta(seconds=300)) == 0
    assert replace(charge, ordered=False).ahead(NOW) == 600_000
