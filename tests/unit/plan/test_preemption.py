"""A cloud's notice that it takes a spot machine back: no new jobs, another machine at once, and jobs keep theirs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.model import plan as p
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.machine import FailureCause, Machine, Phase, Removal, UnfitReason
from meshd.model.observed import AgentReport, Fresh, SlurmJob, Snapshot, Unavailable
from meshd.plan.fitness import is_ready, unfit
from meshd.plan.lifecycle import next_step
from meshd.plan.plan_input import PlanInput
from meshd.plan.planner import plan
from meshd.plan.preemption import NO_TIME_S, REQUEUE_BEFORE_S, REQUEUE_FIRST_S, SIGNAL_BEFORE_S, end_told
from meshd.plan.replace import due_at
from meshd.plan.scale import supply
from tests.unit.worlds import NOW, ago, around, machine, node, slurm

POOL = Pool("h100", "h100", 1, 8, ("aws",))


def noticed(left_s: float = 120.0, phase: Phase = Phase.READY, **changes: Any) -> Machine:
    return machine(phase, age_s=5000.0, preempted_at=NOW + timedelta(seconds=left_s), **changes)


def world(m: Machine, *states: str, jobs: tuple[SlurmJob, ...] = ()) -> Snapshot:
    view = replace(slurm(node(m, *states, reason="meshd: it ends", reason_by="slurm")), jobs=jobs)
    return around(m, slurm=Fresh(view, NOW))


def job(m: Machine, job_id: str = "7", **changes: Any) -> SlurmJob:
    return replace(SlurmJob(job_id, "alice", "h100", "RUNNING", (m.slot,)), **changes)


def step(m: Machine, *states: str, jobs: tuple[SlurmJob, ...] = ()) -> p.Step | None:
    return next_step(m, PlanInput.of(world(m, *states, jobs=jobs), Policy(), NOW, {}))


def test_what_notices_say_of_the_end() -> None:
    assert end_told([], NOW) is None
    assert end_told([("rebalance", None), ("newer_kind", 5.0)], NOW) is None
    assert end_told([("maintenance", 3600.0), ("preempted", None)], NOW) == NOW + timedelta(seconds=NO_TIME_S)


def test_it_takes_no_new_jobs_and_another_is_rented_at_once() -> None:
    m = noticed()
    assert isinstance(step(m, "MIXED", jobs=(job(m),)), p.Drain)
    assert supply([m]) == []
    desired = Desired("lab", {"h100": POOL}, {"h100": Target("h100", 1)})
    for seen in (world(m, "MIXED", jobs=(job(m),)), world(m, "IDLE", "DRAIN")):
        steps = plan(desired, [m], seen, NOW).steps
        (new,) = [one for one in steps if isinstance(one, p.RequestMachine)]
        assert new.subject != m.slot
        # The new one counts: there is no second.
        on_its_way = machine(Phase.REQUESTED, index=2)
        steps = plan(desired, [m, on_its_way], seen, NOW).steps
        assert not [one for one in steps if isinstance(one, p.RequestMachine)]


def test_without_a_job_it_is_given_back_once_slurm_was_read_after_the_drain() -> None:
    found = step(noticed(drained_at=ago(5)), "IDLE", "DRAIN")
    assert isinstance(found, p.Move)
    assert (found.to, found.cause) == (Phase.DRAINING, FailureCause.PREEMPTED)
    assert step(noticed(drained_at=NOW), "IDLE", "DRAIN") is None


def test_what_slurm_said_before_it_was_ready_says_nothing_of_its_jobs() -> None:
    just = replace(noticed(), phase_since=NOW)
    assert step(just, "IDLE", "CLOUD", "POWERED_DOWN") is None
    assert isinstance(step(noticed(), "IDLE", "CLOUD", "POWERED_DOWN"), p.Move)


@pytest.mark.parametrize("phase", [Phase.CONFIGURING, Phase.TESTING])
def test_one_that_has_not_joined_yet_is_given_up(phase: Phase) -> None:
    found = step(noticed(phase=phase), "IDLE")
    assert isinstance(found, p.Move)
    assert found.cause is FailureCause.PREEMPTED


def test_jobs_are_told_once_and_those_that_may_be_are_requeued_in_time() -> None:
    early = noticed(SIGNAL_BEFORE_S + 1, drained_at=ago(5))
    jobs = (job(early, "7"), job(early, "8", requeue=False), job(early, "9", batch=False), job(early, "10", nodes=()))
    assert step(early, "MIXED", "DRAIN", jobs=jobs) is None
    told = step(noticed(SIGNAL_BEFORE_S, drained_at=ago(5)), "MIXED", "DRAIN", jobs=jobs)
    assert isinstance(told, p.SignalJobs)
    assert told.jobs == ("7", "8")
    waits = noticed(REQUEUE_BEFORE_S + 1, drained_at=ago(5), jobs_signalled_at=ago(3))
    assert step(waits, "MIXED", "DRAIN", jobs=jobs) is None
    late = replace(waits, preempted_at=NOW + timedelta(seconds=REQUEUE_BEFORE_S))
    for one in (late, replace(late, phase=Phase.DRAINING, removal=Removal.SCALE_DOWN)):
        again = step(one, "MIXED", "DRAIN", jobs=jobs)
        assert isinstance(again, p.RequeueJobs)
        assert again.jobs == ("7",)
    ending = tuple(replace(one, state="COMPLETING") for one in jobs)
    assert step(late, "MIXED", "DRAIN", jobs=ending) is None


def test_jobs_whose_scripts_cannot_be_read_are_requeued_before_the_end() -> None:
    m = noticed(REQUEUE_FIRST_S, drained_at=ago(5))
    jobs = (job(m, "7"), job(m, "8", requeue=False))
    again = step(m, "MIXED", "DRAIN", jobs=jobs)
    assert isinstance(again, p.RequeueJobs)
    assert again.jobs == ("7",)
    told = step(m, "MIXED", "DRAIN", jobs=jobs[1:])
    assert isinstance(told, p.SignalJobs), "one that may not be requeued is told until the end"
    earlier = noticed(REQUEUE_FIRST_S + 1, drained_at=ago(5))
    assert isinstance(step(earlier, "MIXED", "DRAIN", jobs=jobs), p.SignalJobs)


def test_it_is_unfit_and_not_replaced_a_second_time() -> None:
    m = noticed(drained_at=ago(5))
    view = PlanInput.of(world(m, "MIXED", "DRAIN", jobs=(job(m),)), Policy(), NOW, {}).view
    found = unfit(m, view)
    assert found is not None
    assert found.why is UnfitReason.SPOT_NOTICE
    assert not is_ready(m, view)
    assert due_at(m, found, view) is None


def test_unknown_is_not_idle() -> None:
    m = noticed(drained_at=ago(5))
    dark = replace(world(m, "IDLE", "DRAIN"), slurm=Unavailable("does not answer", ago(60)))
    assert next_step(m, PlanInput.of(dark, Policy(), NOW, {})) is None


def test_a_notice_that_is_withdrawn_lifts_the_drain() -> None:
    m = machine(Phase.READY, age_s=5000.0, drained_at=ago(100))
    reason = {"reason": "meshd: its cloud takes it back at 12:02:00 UTC", "reason_by": "slurm"}
    seen = around(m, slurm=Fresh(slurm(node(m, "IDLE", "DRAIN", **reason)), NOW))
    seen = replace(seen, reports={m.name: AgentReport(at=ago(1))})
    found = next_step(m, PlanInput.of(seen, Policy(), NOW, {}))
    assert isinstance(found, p.RecordFitness)
    noted = replace(m, unfit_reason=found.unfit_reason, unfit_since=ago(1000))
    assert isinstance(next_step(noted, PlanInput.of(seen, Policy(), NOW, {})), p.Undrain)


STATES = st.sampled_from([("MIXED",), ("MIXED", "DRAIN"), ("IDLE",), ("ALLOCATED", "DRAIN"), ("MIXED", "DOWN")])


@given(
    left_s=st.floats(-600, 7200), states=STATES, signalled=st.booleans(), removal=st.sampled_from([None, *Removal]),
    draining=st.booleans(), requeue=st.booleans(), batch=st.booleans(),
)  # fmt: skip
def test_no_running_job_loses_its_machine_earlier_than_by_its_cloud(
    left_s: float, states: tuple[str, ...], signalled: bool, removal: Removal | None, draining: bool, requeue: bool,
    batch: bool,
) -> None:  # fmt: skip
    phase = Phase.DRAINING if draining else Phase.READY
    m = noticed(left_s, phase, drained_at=ago(5), jobs_signalled_at=ago(1) if signalled else None, removal=removal)
    found = step(m, *states, jobs=(job(m, requeue=requeue, batch=batch),))
    if removal is not Removal.FORCED:
        assert not isinstance(found, p.Leave | p.Terminate)
        assert not isinstance(found, p.Move) or found.to is Phase.DRAINING
    if isinstance(found, p.RequeueJobs):
        assert requeue
        assert batch
        assert left_s <= REQUEUE_BEFORE_S
