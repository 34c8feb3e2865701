"""Idle machines are given back: known to be idle, for long enough, whole, and never below `min_gpus`."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from meshd.model.desired import Pool, Target
from meshd.model.machine import Machine, Phase, Removal
from meshd.model.observed import Fresh, SlurmJob, SlurmView
from meshd.plan.idle import give_back, idle_since
from meshd.provider_api import ProviderCapabilities
from tests.unit.worlds import GONE_DARK, NOW, OFFER, ago, cluster_view, machine, node, slurm

POOL = Pool("h100", "h100", 1, 8, ("aws",), idle_timeout_s=1800)
READY = machine(Phase.READY)


def look(*states: str, before: datetime | None = None, jobs: dict[str, str] | None = None, **parts: Any) -> Any:
    """Since when the machine is idle, after one look."""
    seen = Fresh(slurm(node(READY, *states, **parts), jobs=jobs), NOW)
    return idle_since({READY.name: before} if before else {}, [READY], cluster_view(slurm=seen)).get(READY.name)


def test_it_counts_from_the_first_look_without_a_job() -> None:
    assert look("IDLE") == NOW
    assert look("IDLE", before=ago(600)) == ago(600)


@pytest.mark.parametrize(
    ("states", "changes"),
    [
        (["ALLOCATED"], {}), (["MIXED"], {}), (["IDLE", "COMPLETING"], {}), (["IDLE"], {"jobs": {"h100-1": "7"}}),
        (["IDLE", "DRAIN"], {}), (["IDLE", "DRAIN"], {"reason": "drained by alice: mine", "reason_by": "slurm"}),
        (["DOWN"], {"reason": "disk", "reason_by": "alice"}), (["IDLE"], {"node_addr": "100.64.9.9"}),
        (["MIXED", "DRAIN"], {"reason": "Kill task failed", "reason_by": "slurm"}),
    ],
)  # fmt: skip
def test_a_job_or_a_doubt_begins_it_anew(states: list[str], changes: dict[str, Any]) -> None:
    assert look(*states, before=ago(600), **changes) is None


@pytest.mark.parametrize(
    ("states", "changes"),
    [
        (["IDLE", "DRAIN"], {"reason": "Kill task failed", "reason_by": "root"}),
        (["IDLE", "DRAIN", "INVALID_REG"], {"reason": "gres/gpu count reported lower than configured (0 < 1)"}),
        (["DOWN"], {"reason": "Node unexpectedly rebooted", "reason_by": "slurm"}), (["IDLE", "NOT_RESPONDING"], {}),
    ],
)  # fmt: skip
def test_a_node_that_no_job_can_use_is_idle(states: list[str], changes: dict[str, Any]) -> None:
    assert look(*states, before=ago(600), **changes) == ago(600)


def test_who_cannot_look_begins_anew() -> None:
    before = {READY.name: ago(600)}
    assert idle_since(before, [READY], cluster_view(slurm=GONE_DARK)) == {}
    assert idle_since(before, [READY], cluster_view(slurm=Fresh(slurm(node(READY)), ago(1000)))) == {}


@pytest.mark.parametrize(
    ("reason", "partition", "idle"),
    [
        ("Resources", "gpu", False), ("(Priority)", "gpu", False),
        ("ReqNodeNotAvail, UnavailableNodes:x", "gpu", False),
        ("Resources", "other", True), ("Dependency", "gpu", True), ("JobHeldUser", "gpu", True),
    ],
)  # fmt: skip
def test_a_node_that_jobs_wait_for_is_not_idle(reason: str, partition: str, idle: bool) -> None:
    waiting = SlurmJob("9", "u", partition, "PENDING", state_reason=reason)
    view = SlurmView("24.11.5", {READY.slot: node(READY, partitions=("gpu",))}, (waiting,))
    assert bool(idle_since({}, [READY], cluster_view(slurm=Fresh(view, NOW)))) is idle


def idle_for(*minutes: float) -> tuple[list[Machine], dict[str, datetime]]:
    machines = [machine(Phase.READY, index=i) for i in range(1, len(minutes) + 1)]
    return machines, {m.name: NOW - timedelta(minutes=t) for m, t in zip(machines, minutes, strict=True)}


def test_the_one_that_was_idle_for_longest_goes_first() -> None:
    machines, idle = idle_for(31, 45, 10)
    found = give_back(POOL, Target("h100", 3, at=ago(9000)), machines, idle, NOW)
    assert found is not None
    assert (found.machine.slot, found.target.gpus, found.reason) == ("h100-2", 2, "h100-2 had no job for 45 min")
    assert found.target.by == "meshd"


def test_not_before_its_time_nor_without_a_timeout() -> None:
    machines, idle = idle_for(29)
    assert give_back(POOL, Target("h100", 1), machines, idle, NOW) is None
    machines, idle = idle_for(3000)
    assert give_back(replace(POOL, idle_timeout_s=None), Target("h100", 1), machines, idle, NOW) is None


def test_never_below_the_least() -> None:
    machines, idle = idle_for(40, 40, 40)
    least = replace(POOL, min_gpus=2)
    found = give_back(least, Target("h100", 3), machines, idle, NOW)
    assert found is not None
    assert found.target.gpus == 2
    assert give_back(least, Target("h100", 2), machines[:2], idle, NOW) is None


def test_whole_machines_only() -> None:
    """Eight and four for a target of ten; the least is five."""
    eight, four = (
        machine(Phase.READY, index=index, offer=replace(OFFER, gpus=gpus)) for index, gpus in ((1, 8), (2, 4))
    )
    idle = {eight.name: ago(9000), four.name: ago(8000)}
    found = give_back(replace(POOL, min_gpus=5), Target("h100", 10), [eight, four], idle, NOW)
    assert found is not None
    assert (found.machine.name, found.target.gpus) == (four.name, 8), "without the eight there would be four"
    found = give_back(POOL, Target("h100", 10), [eight, four], idle, NOW)
    assert found is not None
    assert (found.machine.name, found.target.gpus) == (eight.name, 4)


def test_what_is_still_missing_stays_wanted() -> None:
    machines, idle = idle_for(40)
    found = give_back(POOL, Target("h100", 5), machines, idle, NOW)
    assert found is not None
    assert found.target.gpus == 4


def test_one_that_leaves_already_is_not_counted_again() -> None:
    machines, idle = idle_for(40)
    assert give_back(POOL, Target("h100", 1), [replace(machines[0], removal=Removal.SCALE_DOWN)], idle, NOW) is None


# -- pools that Slurm's queue drives ----------------------------------------------------------------------------------

QUEUE = replace(POOL, idle_timeout_s=None, from_queue=True)
HOURLY = {"aws": ProviderCapabilities(billing_increment_s=3600.0)}


@pytest.mark.parametrize(("minutes", "goes"), [(9, False), (11, True)])
def test_the_queues_machines_go_after_ten_minutes(minutes: float, goes: bool) -> None:
    machines, idle = idle_for(minutes)
    found = give_back(QUEUE, None, machines, idle, NOW)
    assert (found is not None) is goes
    assert found is None or found.target is None


@pytest.mark.parametrize(("target", "min_gpus", "goes"), [(1, 0, True), (2, 0, False), (0, 2, False), (0, 1, True)])
def test_target_and_min_gpus_are_a_floor(target: int, min_gpus: int, goes: bool) -> None:
    machines, idle = idle_for(60, 60)
    pool = replace(QUEUE, min_gpus=min_gpus)
    found = give_back(pool, Target("h100", target), machines, idle, NOW)
    assert (found is not None) is goes
    assert found is None or found.target is None, "the target stays as it was said"


def test_an_explicit_time_lowers_the_target_as_ever() -> None:
    machines, idle = idle_for(60, 60)
    found = give_back(replace(QUEUE, idle_timeout_s=1800), Target("h100", 2), machines, idle, NOW)
    assert found is not None
    assert found.target is not None
    assert found.target.gpus == 1


def test_what_the_queue_left_in_a_pool_that_people_drive_goes_too() -> None:
    machines, idle = idle_for(60, 60)
    by_hand = replace(POOL, idle_timeout_s=None)
    assert give_back(by_hand, None, machines, idle, NOW) is None
    machines[1] = replace(machines[1], by_queue=True)
    found = give_back(by_hand, None, machines, idle, NOW)
    assert found is not None
    assert found.machine is machines[1]


@pytest.mark.parametrize(("run_min", "goes"), [(30, False), (57.9, False), (58.1, True), (61, False), (119, True)])
def test_time_that_is_paid_for_is_used(run_min: float, goes: bool) -> None:
    machines, idle = idle_for(20)
    machines = [replace(m, launched_at=ago(run_min * 60)) for m in machines]
    assert (give_back(QUEUE, None, machines, idle, NOW, HOURLY) is not None) is goes
    assert give_back(QUEUE, None, machines, idle, NOW, {"aws": ProviderCapabilities()}) is not None
    by_hand = replace(QUEUE, from_queue=False, idle_timeout_s=600)
    assert give_back(by_hand, None, machines, idle, NOW, HOURLY) is not None, "as ever"


def test_jobs_that_wait_keep_no_node_of_the_queue() -> None:
    waiting = SlurmJob("9", "u", "gpu", "PENDING", state_reason="Resources")
    view = SlurmView("24.11.5", {READY.slot: node(READY, partitions=("gpu",))}, (waiting,))
    assert idle_since({}, [READY], cluster_view(slurm=Fresh(view, NOW)), {"h100"}) == {READY.name: NOW}


def test_a_job_that_configures_keeps_its_nodes() -> None:
    configuring = SlurmJob("9", "u", "gpu", "CONFIGURING", (READY.slot, "h100-2"))
    view = SlurmView("24.11.5", {READY.slot: node(READY)}, (configuring,))
    assert idle_since({}, [READY], cluster_view(slurm=Fresh(view, NOW)), {"h100"}) == {}


def test_what_slurm_is_told_never_to_suspend_stays() -> None:
    view = SlurmView("24.11.5", {READY.slot: node(READY)}, (), suspend_exc=frozenset({READY.slot}))
    assert idle_since({}, [READY], cluster_view(slurm=Fresh(view, NOW)), {"h100"}) == {}
