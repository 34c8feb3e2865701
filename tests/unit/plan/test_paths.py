"""A pool that demands direct paths: slurmd waits for one, for so long, and a machine without one is given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshd.model import plan as p
from meshd.model.desired import Policy
from meshd.model.machine import FailureCause, Machine, Phase, Removal
from meshd.model.observed import AgentReport, Fresh, Snapshot
from meshd.model.path import MeasuredPath, PathKind, ThroughputEstimate
from meshd.plan.lifecycle import next_step
from meshd.plan.paths import FRESH_S
from meshd.plan.plan_input import PlanInput
from tests.unit.worlds import GONE_DARK, NOW, ago, around, machine, slurm, tailnet

POLICY = Policy(direct_pools=frozenset({"h100"}))
LIMIT_S = POLICY.test_timeout_s
CONFIGURED = machine(Phase.CONFIGURING, munge_ok=True, line_published=True)
DIRECT, RELAYED, PEER_RELAYED = PathKind.DIRECT, PathKind.DERP, PathKind.PEER_RELAY


def waiting(age_s: float = 10.0, **changes: Any) -> Machine:
    """A machine that is TESTING, and whose slurmd was not started."""
    return machine(Phase.TESTING, age_s=age_s, slurmd_started=False, slurmd_start_ordered_at=None, **changes)


def seen(m: Machine, kind: PathKind | None, *states: str, age_s: float = 1.0, **parts: Any) -> Snapshot:
    """All is well around the machine; its agent has measured this path."""
    path = MeasuredPath(kind, "fra", 0.05, ago(age_s)) if kind is not None else None
    return around(m, *(states or ("DOWN",)), reports={m.name: AgentReport(NOW, head_path=path)}, **parts)


def step(m: Machine, snapshot: Snapshot, policy: Policy = POLICY) -> p.Step | None:
    return next_step(m, PlanInput.of(snapshot, policy, NOW, {}))


def test_a_direct_path_delays_nothing() -> None:
    assert isinstance(step(CONFIGURED, seen(CONFIGURED, DIRECT)), p.StartSlurmd)


@pytest.mark.parametrize(("kind", "age_s"), [(RELAYED, 1.0), (PEER_RELAYED, 1.0), (None, 1.0), (DIRECT, FRESH_S + 1)])
def test_any_other_path_is_waited_for_before_slurmd_starts(kind: PathKind | None, age_s: float) -> None:
    found = step(CONFIGURED, seen(CONFIGURED, kind, age_s=age_s))
    assert isinstance(found, p.Move)
    assert (found.to, found.failure) == (Phase.TESTING, "")
    m = waiting()
    assert step(m, seen(m, kind, age_s=age_s)) is None
    assert step(m, seen(m, kind, "IDLE", age_s=age_s)) is None, "whatever Slurm shows, it is not READY"
    any_path = replace(POLICY, direct_pools=frozenset({"other"}))
    assert isinstance(step(CONFIGURED, seen(CONFIGURED, kind, age_s=age_s), any_path), p.StartSlurmd)


def test_a_relayed_path_becomes_direct() -> None:
    m = waiting(LIMIT_S - 1)
    assert step(m, seen(m, RELAYED)) is None
    assert isinstance(step(m, seen(m, DIRECT)), p.StartSlurmd)
    relaxed = replace(POLICY, direct_pools=frozenset())
    assert isinstance(step(m, seen(m, RELAYED), relaxed), p.StartSlurmd), "the setting was changed meanwhile"
    started = replace(m, slurmd_started=True, slurmd_start_ordered_at=ago(1))
    assert isinstance(step(started, seen(started, DIRECT, "IDLE")), p.MarkReady)
    assert isinstance(step(started, seen(started, RELAYED, "IDLE")), p.MarkReady), "a job may have begun"


def test_slurmd_has_its_own_time_after_the_path() -> None:
    late = waiting(2 * LIMIT_S)
    started = replace(late, slurmd_started=True, slurmd_start_ordered_at=ago(LIMIT_S - 1))
    assert step(started, seen(started, DIRECT, "DOWN")) is None
    over = step(replace(started, slurmd_start_ordered_at=ago(LIMIT_S + 1)), seen(started, DIRECT, "DOWN"))
    assert isinstance(over, p.Move) and over.cause is FailureCause.TEST


@pytest.mark.parametrize(("kind", "words"), [(RELAYED, "the relay fra"), (None, "not measured")])
def test_one_that_stays_relayed_is_given_up_with_the_cure(kind: PathKind | None, words: str) -> None:
    m = waiting(LIMIT_S + 1)
    found = step(m, seen(m, kind))
    assert isinstance(found, p.Move)
    assert (found.to, found.cause) == (Phase.TERMINATING, FailureCause.PATH), (
        "no job can be on it: nothing is waited for"
    )
    assert words in found.failure
    assert "41641" in found.failure and "NAT" in found.failure


def test_the_time_counts_only_while_progress_could_be_seen() -> None:
    m = waiting(LIMIT_S + 1)
    assert step(m, seen(m, RELAYED, tailnet=GONE_DARK)) is None
    assert step(m, seen(m, RELAYED, slurm=GONE_DARK)) is None
    assert step(m, seen(m, RELAYED, tailnet=Fresh(tailnet(), NOW, ago(60)), slurm=Fresh(slurm(), NOW))) is None


def test_a_machine_that_may_have_jobs_is_not_held_back() -> None:
    for changes in ({"launch_attempts": 0}, {"slurmd_start_ordered_at": ago(5)}):
        m = replace(CONFIGURED, **changes)  # type: ignore[arg-type]
        assert isinstance(step(m, seen(m, RELAYED)), p.StartSlurmd)


def test_one_that_is_not_wanted_any_more_leaves_at_once() -> None:
    m = waiting(removal=Removal.SCALE_DOWN)
    found = step(m, seen(m, RELAYED))
    assert isinstance(found, p.Move) and found.to is Phase.TERMINATING


@pytest.mark.parametrize(
    ("kind", "rtt_s", "estimate"),
    [
        (DIRECT, 0.0004, ThroughputEstimate.HIGH),
        (DIRECT, 0.08, ThroughputEstimate.MEDIUM),
        (PEER_RELAYED, 0.0004, ThroughputEstimate.MEDIUM),
        (RELAYED, 0.0004, ThroughputEstimate.LOW),
    ],
)
def test_the_estimate(kind: PathKind, rtt_s: float, estimate: ThroughputEstimate) -> None:
    assert MeasuredPath(kind, "", rtt_s, NOW).throughput_estimate is estimate
