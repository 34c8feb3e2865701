"""A job that waits for its nodes is not a job that runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshd.model.desired import Policy
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh, SlurmJob, SlurmNode, SlurmView
from meshd.model.plan import Move
from meshd.plan.lifecycle import next_step
from meshd.plan.plan_input import PlanInput
from meshd.provider_api import InstanceState
from tests.unit.worlds import NOW, ago, instance, machine, snapshot

M = machine(Phase.BOOTING)


def view(*states: str, job: str = "", m: Machine = M) -> SlurmView:
    node = SlurmNode(m.slot, m.tailnet_ip or "192.0.2.1", frozenset(states))
    jobs = (SlurmJob("7", "u", "h100", job, (m.slot, "h100-2")),) if job else ()
    return SlurmView("24.11.5", {m.slot: node}, jobs)


def given(slurm: SlurmView) -> PlanInput:
    return PlanInput.of(snapshot(slurm=Fresh(slurm, NOW)), Policy(), NOW, {})


@pytest.mark.parametrize(
    ("states", "job", "idle"),
    [
        ({"MIXED", "POWERING_UP", "NOT_RESPONDING"}, "CONFIGURING", True),
        ({"ALLOCATED", "POWERING_UP"}, "CONFIGURING", True),
        ({"MIXED", "POWERED_DOWN"}, "CONFIGURING", True),  # Slurm has just given it to the job
        ({"MIXED"}, "CONFIGURING", False),  # it is up: the job starts as soon as the others are
        ({"MIXED"}, "RUNNING", False),
        ({"ALLOCATED", "POWERING_UP"}, "RUNNING", False),
        ({"IDLE", "COMPLETING", "POWERING_UP"}, "", False),
        ({"IDLE", "POWERING_UP"}, "", True),
        ({"IDLE"}, "", True),
    ],
)
def test_a_node_is_idle_when_nothing_runs_there_or_can_start(states: set[str], job: str, idle: bool) -> None:
    assert given(view(*states, job=job)).idle(M) is idle


def test_jobs_that_run_and_jobs_that_wait_are_told_apart() -> None:
    waits, runs = given(view("MIXED", job="CONFIGURING")), given(view("MIXED", job="RUNNING"))
    assert (waits.jobs, waits.configuring_jobs) == ({}, {M.slot: ("7",), "h100-2": ("7",)})
    assert (runs.jobs, runs.configuring_jobs) == ({M.slot: ("7",), "h100-2": ("7",)}, {})


def test_a_node_that_powers_up_is_not_up() -> None:
    for flag in ("POWERING_UP", "POWER_UP", "POWERING_DOWN", "POWERED_DOWN"):
        assert not view("MIXED", flag).nodes[M.slot].up
    assert view("MIXED", "POWER_DOWN", "DRAIN").nodes[M.slot].up, "its job runs on"


def test_a_machine_that_fails_under_a_waiting_job_is_ended_at_once() -> None:
    m = machine(Phase.TESTING, slurmd_started=False, slurmd_start_ordered_at=None, heartbeat_at=ago(1000))
    seen = snapshot(
        instances={"aws": Fresh((instance(m, InstanceState.GONE),), NOW)},
        slurm=Fresh(view("MIXED", "POWERING_UP", job="CONFIGURING", m=m), NOW),
    )
    step = next_step(replace(m), PlanInput.of(seen, Policy(), NOW, {}))
    assert isinstance(step, Move)
    assert step.to is Phase.TERMINATING
