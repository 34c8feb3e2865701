"""Arriving at and leaving a slot that Slurm's power saving drives."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from meshd.model import plan as p
from meshd.model.desired import Desired, Policy
from meshd.model.machine import Machine, Phase, UnfitReason
from meshd.model.observed import AgentReport, Fresh, SlurmJob, SlurmView, Snapshot
from meshd.plan import unfit_advice
from meshd.plan.fitness import unfit
from meshd.plan.lifecycle import next_step
from meshd.plan.liveness import patience_s
from meshd.plan.plan_input import PlanInput
from meshd.plan.room import taken_slots
from tests.unit.worlds import GONE_DARK, NOW, ago, around, machine, node, slurm

PLACEHOLDER = "239.192.0.1"
ARRIVING = machine(Phase.CONFIGURING, munge_ok=True)
PATH_TESTED = machine(Phase.TESTING, munge_ok=True, slurmd_started=False, slurmd_start_ordered_at=None)


def at(m: Machine, *states: str, addr: str = "", job: str = "") -> Fresh[SlurmView]:
    jobs = (SlurmJob("7", "u", "h100", job, (m.slot,)),) if job else ()
    found = node(m, "CLOUD", *states, node_addr=addr or m.tailnet_ip)
    return Fresh(SlurmView("24.11.5", {m.slot: found}, jobs), NOW)


def step(m: Machine, seen: Snapshot) -> p.Step | None:
    return next_step(m, PlanInput.of(seen, Policy(), NOW, {}))


@pytest.mark.parametrize(
    ("states", "settable", "starts"),
    [
        (("MIXED", "POWERING_UP"), True, True),
        (("IDLE", "POWERED_DOWN"), True, True),  # for a target: nobody asked Slurm
        (("MIXED", "POWERING_UP"), False, False),  # its line has to be in force first
    ],
)
def test_slurmd_waits_for_the_file_only_where_its_line_needs_that(
    states: tuple[str, ...], settable: bool, starts: bool
) -> None:
    addrs = {ARRIVING.slot: ARRIVING.tailnet_ip} if settable else {}
    seen = around(ARRIVING, slurm=at(ARRIVING, *states, addr=PLACEHOLDER), settable_addrs=addrs)
    found = step(ARRIVING, seen)
    assert (found == p.StartSlurmd(ARRIVING.name, "munge is proved and its line fits", cloud=True)) is starts
    assert starts or found is None


@pytest.mark.parametrize("m", [ARRIVING, PATH_TESTED])
@pytest.mark.parametrize("slurm", [GONE_DARK, Fresh(SlurmView("24.11.5", {}, ()), NOW + timedelta(hours=1))])
def test_slurmd_does_not_start_before_slurm_says_of_which_form_its_slot_is(m: Machine, slurm: Any) -> None:
    """Without -b it tells of an old boot, e.g. of an owned machine, and a CLOUD slot waits for a new one."""
    m = replace(m, line_published=True)
    addrs = {m.slot: m.tailnet_ip}
    assert step(m, around(m, slurm=slurm, node_addrs=addrs, settable_addrs=addrs)) is None
    found = step(m, around(m, slurm=at(m, "MIXED", "POWERING_UP"), node_addrs=addrs))
    assert isinstance(found, p.StartSlurmd) and found.cloud


def test_a_slot_that_is_no_cloud_node_waits_for_its_line() -> None:
    seen = around(ARRIVING, "DOWN", settable_addrs={ARRIVING.slot: ARRIVING.tailnet_ip})
    assert step(ARRIVING, seen) is None


def test_the_line_is_noted_when_it_follows() -> None:
    for phase in (Phase.TESTING, Phase.READY):
        m = machine(phase, line_published=False)
        states = ("IDLE",) if phase is Phase.READY else ("IDLE", "POWERING_UP")
        seen = around(m, slurm=at(m, *states), node_addrs={m.slot: m.tailnet_ip})
        assert isinstance(step(m, seen), p.RecordPublished)


LEAVING = machine(Phase.DRAINING)


@pytest.mark.parametrize(
    ("states", "job", "action"),
    [
        (("IDLE",), "", p.Drain),
        (("MIXED",), "RUNNING", p.Drain),
        (("MIXED", "DRAIN"), "RUNNING", None),
        (("MIXED", "DRAIN"), "CONFIGURING", None),
        (("IDLE", "DRAIN"), "", p.Leave),
        (("IDLE", "DRAIN", "POWER_DOWN"), "", p.Leave),
        (("IDLE", "POWERING_DOWN"), "", p.Leave),
        (("IDLE", "POWERED_DOWN"), "", p.Leave),
        (("MIXED", "POWERING_UP"), "CONFIGURING", p.Leave),  # the job waits for the next machine, undisturbed
    ],
)
def test_leaving(states: tuple[str, ...], job: str, action: type[p.Step] | None) -> None:
    found = step(LEAVING, around(LEAVING, slurm=at(LEAVING, *states, job=job)))
    assert (None if found is None else type(found)) is action


def test_a_machine_that_left_is_ended_without_waiting_for_the_file() -> None:
    m = machine(Phase.TERMINATING, left_slurm=True, tailnet_ip="100.64.0.2")
    addrs = {m.slot: m.tailnet_ip}
    cloud = around(m, slurm=at(m, "IDLE", "POWERING_DOWN"), node_addrs=addrs)
    assert isinstance(step(m, cloud), p.Terminate)
    assert step(m, around(m, "DOWN", node_addrs=addrs)) is None


def ready_and_off(**report: int) -> tuple[Machine, Snapshot]:
    m = machine(Phase.READY, unfit_reason=UnfitReason.POWERED_DOWN, unfit_since=ago(60))
    reports = {m.name: AgentReport(at=NOW, **report)}
    return m, around(m, slurm=at(m, "IDLE", "POWERED_DOWN", addr=m.slot), reports=reports)


def test_a_machine_whose_node_somebody_powered_down_is_given_back() -> None:
    found = step(*ready_and_off())
    assert isinstance(found, p.Move)
    assert found.to is Phase.DRAINING
    assert step(*ready_and_off(jobs=1)) is None, "its slurmctld has lost its state"
    m, seen = ready_and_off()
    assert step(replace(m, unfit_since=ago(5)), seen) is None


@pytest.mark.parametrize("jobs", [0, 1])
def test_what_it_waits_for_is_told(jobs: int) -> None:
    m, seen = ready_and_off(jobs=jobs)
    view = PlanInput.of(seen, Policy(), NOW, {}).view
    found = unfit(m, view)
    assert found is not None
    told = unfit_advice.next_step(m, found, [m], Desired("lab", {}, {}), view)
    assert "gives it back" in told
    assert ("1 job that Slurm does not know" in told) == (jobs == 1)


def test_a_cloud_node_that_powers_up_does_not_reboot() -> None:
    m = machine(Phase.TESTING)
    policy = Policy()
    for cloud, expected_s in ((True, policy.heartbeat_lost_s), (False, policy.boot_timeout_s)):
        seen = around(m, slurm=at(m, "IDLE", "POWERING_UP")) if cloud else around(m, "IDLE", "POWERING_UP")
        assert patience_s(m, PlanInput.of(seen, policy, NOW, {})) == expected_s


@pytest.mark.parametrize(
    ("states", "shown", "taken"),
    [
        (("CLOUD", "IDLE"), "100.64.9.9", True),  # it is the node of a machine that the journal does not know
        (("CLOUD", "IDLE", "POWERED_DOWN"), "h100-1", False),  # as Slurm leaves it; the file follows later
        (("CLOUD", "MIXED", "POWERING_UP"), PLACEHOLDER, False),
        (("DOWN",), "100.64.9.9", True),
        (("DOWN",), PLACEHOLDER, True),  # of a node that is no CLOUD node only the file speaks
    ],
)
def test_the_line_of_a_former_machine_takes_a_slot_while_slurm_uses_it(
    states: tuple[str, ...], shown: str, taken: bool
) -> None:
    m = machine(Phase.GONE)
    seen = around(m, slurm=Fresh(slurm(node(m, *states, node_addr=shown)), NOW), node_addrs={m.slot: "100.64.9.9"})
    assert (m.slot in taken_slots([], PlanInput.of(seen, Policy(), NOW, {}))) is taken
    dark = around(m, slurm=GONE_DARK, node_addrs={m.slot: "100.64.9.9"})
    assert m.slot in taken_slots([], PlanInput.of(dark, Policy(), NOW, {}))
