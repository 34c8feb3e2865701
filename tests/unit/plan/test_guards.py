"""Which orders wait, until when, what is asked first, and what people are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from meshd.codes import WarningCode
from meshd.model import plan as p
from meshd.model.desired import Desired, Pool, Target
from meshd.model.guards import Guards
from meshd.model.machine import Machine, Phase
from meshd.plan.guards import asks_first, ordered_at, orders
from meshd.plan.planner import plan
from tests.unit.worlds import NOW, ago, machine, snapshot

GUARDS = Guards(3, 600)


def order(index: int, *, age_s: float = 10, jobs: tuple[str, ...] = (), **changes: Any) -> Machine:
    return machine(Phase.REQUESTED, index=index, created_at=ago(age_s), for_jobs=jobs, **changes)


def slots_that_wait(*machines: Machine, sent_s: tuple[float, ...] = (), guards: Guards = GUARDS) -> list[str]:
    found = orders(guards, [ago(s) for s in sent_s], machines, (), NOW)
    return sorted(m.slot for m in machines if m.name in found.waiting)


def test_the_oldest_orders_go_first_and_no_later_one_goes_past_them() -> None:
    two, four = order(2, age_s=20, jobs=("7",)), order(4, age_s=20, jobs=("7",))
    one = order(1)
    assert slots_that_wait(one, two, four, sent_s=(30.0,)) == ["h100-1"]
    assert slots_that_wait(one, two, four, sent_s=(30.0, 40.0)) == ["h100-1", "h100-2", "h100-4"], "one has room"
    assert slots_that_wait(one, two, four, sent_s=(30.0, 600.0)) == ["h100-1"], "an old one does not count"
    assert not slots_that_wait(one, two, four, guards=Guards())


def test_who_waits_is_told_until_when() -> None:
    gang = [order(index, jobs=("7",)) for index in (1, 2)]
    found = orders(GUARDS, [ago(30), ago(400), ago(100)], gang, (), NOW)
    assert found.next_at == ago(100) + timedelta(seconds=600), "two of the interval's orders must be over"
    (warning,) = found.warning(GUARDS)
    assert warning.code is WarningCode.LAUNCHES_HELD and "2 machines wait" in warning.reason
    assert f"{found.next_at:%H:%M:%S}" in warning.reason


def test_a_job_on_more_nodes_than_an_interval_allows_gets_its_machines_in_parts() -> None:
    gang = [order(index, jobs=("7",)) for index in range(1, 6)]
    assert slots_that_wait(*gang) == ["h100-4", "h100-5"]
    assert slots_that_wait(*gang, sent_s=(1.0, 2.0)) == ["h100-2", "h100-3", "h100-4", "h100-5"]


def test_a_call_that_is_about_to_go_out_counts_and_an_unreadable_record_does_not() -> None:
    machines = [order(index, age_s=50 - index) for index in (1, 2, 3, 4)]
    found = orders(GUARDS, [], machines, {machines[3].name}, NOW)
    assert found.waiting == {machines[2].name}
    held = replace(machines[0], unreadable_since=NOW)
    assert slots_that_wait(held, *machines[1:]) == []


def test_what_counts_as_an_order() -> None:
    called = {"launch_first_called_at": ago(5)}
    for phase in (Phase.LAUNCHING, Phase.READY, Phase.LOST):
        assert ordered_at(machine(phase, **called)) == ago(5)
    assert ordered_at(machine(Phase.GONE, **called)) == ago(5), "it was made, and ended since"
    refused = machine(Phase.GONE, instance_id="", refusal="no_capacity", **called)
    assert ordered_at(refused) is None
    assert ordered_at(replace(refused, head_reached_at=NOW)) == ago(5), "it called the head, so it was made"
    assert ordered_at(machine(Phase.REQUESTED, **called)) is None, "the cloud was busy"
    assert ordered_at(machine(Phase.READY, provider="static", **called)) is None


def test_the_plan_sends_what_may_go_and_says_why_the_rest_waits() -> None:
    machines = [order(index, age_s=5000) for index in range(1, 6)]
    desired = Desired(
        "lab", {"h100": Pool("h100", "h100", 1, 8, ("aws",))}, {"h100": Target("h100", 5)}, guards=GUARDS,
        launches=(ago(30),),
    )  # fmt: skip
    found = plan(desired, machines, snapshot(), NOW)
    assert [s.subject for s in found.steps if isinstance(s, p.Launch)] == [m.name for m in machines[:2]]
    assert not [s for s in found.steps if isinstance(s, p.Move)], "a long wait is not the cloud's fault"
    assert set(found.held_orders) == {m.name for m in machines[2:]}
    assert [w.code for w in found.warnings] == [WarningCode.LAUNCHES_HELD]
    late = [replace(machines[0], turn_since=ago(1000)), *machines[1:]]
    moved = [s for s in plan(desired, late, snapshot(), NOW).steps if isinstance(s, p.Move)]
    assert [s.subject for s in moved] == [machines[0].name], "its turn came, and its cloud took no order"


def test_people_are_asked_for_a_price_above_the_limit_and_for_each_machine_that_goes() -> None:
    assert asks_first(1, 2, 0, Guards()) and not asks_first(2, 2, 0, Guards())
    limit = Guards(confirm_usd_per_hour=50)
    assert not asks_first(10, 50, 0, limit) and asks_first(49, 50.5, 0, limit)
    assert asks_first(60, 20, 1, limit) and not asks_first(60, 60, 0, limit)
