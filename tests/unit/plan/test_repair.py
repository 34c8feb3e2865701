"""Unfit nodes are recorded, repaired, replaced; never while a job is on them, and never against a person's drain."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from meshd.model import plan as p
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.desired import Desired, Pool, Target
from meshd.model.guards import Guards
from meshd.model.machine import Machine, Phase, Removal, UnfitReason
from meshd.model.observed import AgentReport, Fresh, Snapshot
from meshd.plan.lifecycle import next_step
from meshd.plan.plan_input import ClusterView, PlanInput
from meshd.plan.planner import plan
from meshd.plan.replace import PROOF_S, proved
from tests.unit.worlds import NOW, ago, instance, machine, node, peer, slurm, snapshot, tailnet

POOL = Pool("h100", "h100", 1, 8, ("aws",))
KILL = {"reason": "Kill task failed", "reason_by": "slurm"}
GRES = {"reason": "gres/gpu count reported lower than configured (0 < 1)", "reason_by": "slurm"}
MINE = {"reason": "drained by alice: mine", "reason_by": "slurm"}
FAULT = {"gpu_fault": "nvidia-smi: GPU is lost", "gpu_fault_since": ago(60)}


def ready(index: int = 1, noted: UnfitReason | None = None, since_s: float = 1000.0, **changes: Any) -> Machine:
    m = machine(Phase.READY, index=index, age_s=5000.0, ready_at=ago(5000))
    return replace(m, **{"unfit_reason": noted, "unfit_since": ago(since_s) if noted else None, **changes})


def seen(*nodes: tuple[Machine, list[str], dict[str, Any]], jobs: dict[str, str] | None = None,
         reports: dict[str, AgentReport] | None = None) -> Snapshot:  # fmt: skip
    """All these machines live; each with its node's states and reason. An agent without a report of its own is well."""
    machines = [m for m, _, _ in nodes]
    told = {m.name: AgentReport(at=ago(5)) for m in machines}
    return snapshot(
        instances={"aws": Fresh(tuple(instance(m) for m in machines), NOW)},
        tailnet=Fresh(tailnet(*(peer(m) for m in machines)), NOW),
        slurm=Fresh(slurm(*(node(m, *states, **parts) for m, states, parts in nodes), jobs=jobs), NOW),
        node_addrs={m.slot: m.tailnet_ip for m in machines}, reports={**told, **(reports or {})},
    )  # fmt: skip


def step(m: Machine, states: list[str], parts: dict[str, Any] | None = None, **more: Any) -> p.Step | None:
    desired = Desired("lab", {}, {})
    return next_step(m, PlanInput.of(seen((m, states, parts or {}), **more), desired.policy, NOW, {}))


def planned(*nodes: tuple[Machine, list[str], dict[str, Any]], pool: Pool = POOL, gpus: int | None = -1,
            cooldowns: dict[CooldownKey, Cooldown] | None = None, guards: Guards | None = None,
            **more: Any) -> list[p.Step]:  # fmt: skip
    gpus = len(nodes) if gpus == -1 else gpus
    targets = {} if gpus is None else {"h100": Target("h100", gpus)}
    desired = Desired("lab", {"h100": pool}, targets, cooldowns=cooldowns or {}, guards=guards or Guards())
    return list(plan(desired, [m for m, _, _ in nodes], seen(*nodes, **more), NOW).steps)


def replaced(*nodes: tuple[Machine, list[str], dict[str, Any]], **more: Any) -> list[str]:
    return [one.subject for one in planned(*nodes, **more) if isinstance(one, p.Replace)]


# -- written down -----------------------------------------------------------------------------------------------------


def test_a_verdict_is_written_down_once_and_so_is_its_end() -> None:
    found = step(ready(), ["IDLE", "DRAIN"], KILL)
    assert isinstance(found, p.RecordFitness)
    assert (found.unfit_reason, found.since) == (UnfitReason.DRAINED, NOW)
    noted = ready(noted=UnfitReason.DRAINED)
    assert step(noted, ["IDLE", "DRAIN"], KILL) is None
    over = step(noted, ["IDLE"])
    assert isinstance(over, p.RecordFitness)
    assert over.unfit_reason is None
    assert step(ready(), ["IDLE"]) is None


def test_a_verdict_stays_while_nobody_can_be_asked() -> None:
    noted = ready(noted=UnfitReason.DOWN)
    blind = replace(seen((noted, ["DOWN"], {})), tailnet=Fresh(tailnet(healthy=False), NOW))
    assert next_step(noted, PlanInput.of(blind, Desired("lab", {}, {}).policy, NOW, {})) is None
    restarted = replace(seen((noted, ["IDLE"], {})), reports={})
    assert next_step(noted, PlanInput.of(restarted, Desired("lab", {}, {}).policy, NOW, {})) is None


# -- repaired ---------------------------------------------------------------------------------------------------------


def test_jobs_are_kept_off_a_broken_gpu_and_let_on_again() -> None:
    m = ready(noted=UnfitReason.GPU_FAULT)
    broken = {m.name: AgentReport(at=ago(5), gpu_fault="GPU is lost", gpu_fault_since=ago(60))}
    found = step(m, ["MIXED"], jobs={m.slot: "7"}, reports=broken)
    assert isinstance(found, p.Drain)
    assert step(m, ["MIXED", "DRAIN"], {"reason": "meshd: GPU fault"}, jobs={m.slot: "7"}, reports=broken) is None
    ours = {"reason": "meshd: GPU fault"}
    for since_s, lifted in ((10, False), (60, True)):
        over = ready(noted=UnfitReason.BY_MESHD, since_s=since_s)
        assert isinstance(step(over, ["IDLE", "DRAIN"], ours), p.Undrain) is lifted
    over = ready(noted=UnfitReason.BY_MESHD)
    unsure = replace(seen((over, ["IDLE", "DRAIN"], ours)), reports={})
    assert next_step(over, PlanInput.of(unsure, Desired("lab", {}, {}).policy, NOW, {})) is None, (
        "its agent was not heard"
    )


def test_nobodys_drain_but_meshds_own_is_lifted() -> None:
    for noted, parts in ((UnfitReason.DRAINED, KILL), (UnfitReason.BY_PERSON, MINE)):
        assert step(ready(noted=noted), ["IDLE", "DRAIN"], parts) is None


def test_a_host_is_not_replaced() -> None:
    """Another machine cannot have its slot, and the host would come back as it is."""
    m = replace(BAD[0], offer=replace(BAD[0].offer, slot="h100-1", standing=True))
    assert replaced((m, *BAD[1:]), FIT) == []


@pytest.mark.parametrize(
    ("noted", "states", "parts"),
    [
        (UnfitReason.INVALID, ["IDLE", "DRAIN", "INVALID_REG"], GRES), (UnfitReason.DOWN, ["DOWN"], {}),
        (UnfitReason.NOT_RESPONDING, ["IDLE", "NOT_RESPONDING"], {}), (UnfitReason.UNREGISTERED, ["UNKNOWN"], {}),
    ],
)  # fmt: skip
def test_slurmd_is_restarted_once_and_under_no_job(
    noted: UnfitReason, states: list[str], parts: dict[str, Any]
) -> None:
    m = ready(noted=noted)
    assert isinstance(step(m, states, parts), p.RestartSlurmd)
    assert step(m, states, parts, jobs={m.slot: "7"}) is None
    assert step(ready(noted=noted, since_s=10), states, parts) is None, "it may pass"
    tried = replace(m, slurmd_restarted_at=ago(500))
    assert step(tried, states, parts) is None
    before = replace(m, slurmd_restarted_at=ago(2000))
    assert isinstance(step(before, states, parts), p.RestartSlurmd), "that was another time"


def test_a_dead_slurmd_is_started_under_a_job_too() -> None:
    m = ready(noted=UnfitReason.SLURMD_DEAD)
    told = {m.name: AgentReport(at=ago(5), slurmd_dead_since=ago(100), jobs=1)}
    assert isinstance(step(m, ["ALLOCATED"], jobs={m.slot: "7"}, reports=told), p.RestartSlurmd)


# -- replaced ---------------------------------------------------------------------------------------------------------

FIT = (ready(2), ["IDLE"], {})
BAD = (ready(noted=UnfitReason.DRAINED), ["IDLE", "DRAIN"], KILL)


def test_an_unfit_node_without_a_job_is_replaced() -> None:
    assert replaced(BAD, FIT) == [BAD[0].name]


def test_but_not_while_as_many_nodes_leave_as_may_at_once() -> None:
    guards = Guards(max_leaving=1)
    assert replaced(BAD, FIT, guards=guards) == [BAD[0].name]
    leaves = (replace(FIT[0], phase=Phase.DRAINING, removal=Removal.BY_USER), ["IDLE", "DRAIN"], MINE)
    assert replaced(BAD, leaves, gpus=1, guards=guards) == []
    assert replaced(BAD, leaves, gpus=1, guards=Guards(max_leaving=2)) == [BAD[0].name]
    waits = {leaves[0].slot: "7"}
    assert replaced(BAD, leaves, gpus=1, guards=guards, jobs=waits) == [BAD[0].name], "that may take days"
    assert replaced((BAD[0], *BAD[1:]), leaves, gpus=1) == [BAD[0].name]


@pytest.mark.parametrize(
    ("noted", "states", "parts"),
    [
        (UnfitReason.INVALID, ["IDLE", "DRAIN", "INVALID_REG"], GRES), (UnfitReason.DOWN, ["DOWN"], {}),
        (UnfitReason.NOT_RESPONDING, ["IDLE", "NOT_RESPONDING"], {}), (UnfitReason.DRAINED, ["IDLE", "DRAIN"], KILL),
    ],
)  # fmt: skip
def test_for_each_reason_that_another_may_not_have(
    noted: UnfitReason, states: list[str], parts: dict[str, Any]
) -> None:
    m = ready(noted=noted)
    m = replace(m, slurmd_restarted_at=ago(900))
    assert replaced((m, states, parts), FIT) == [m.name]
    just = replace(m, slurmd_restarted_at=ago(10))
    assert replaced((just, states, parts), FIT) == [], "what the restart did is not seen yet"


def test_not_under_a_job_whoever_tells_of_it() -> None:
    m = BAD[0]
    assert replaced((m, ["MIXED", "DRAIN"], KILL), FIT, jobs={m.slot: "7"}) == []
    assert replaced((m, ["IDLE", "DRAIN", "COMPLETING"], KILL), FIT) == []
    assert replaced(BAD, FIT, reports={m.name: AgentReport(at=ago(5), jobs=1)}) == []


def test_never_a_persons_node_and_never_one_that_is_only_silent() -> None:
    for noted, states, parts in (
        (UnfitReason.BY_PERSON, ["IDLE", "DRAIN"], MINE),
        (UnfitReason.BY_PERSON, ["DOWN"], {"reason": "bad fan", "reason_by": "bob"}),
        (UnfitReason.MAINTENANCE, ["IDLE", "MAINTENANCE"], {}),
        (UnfitReason.ABSENT, ["IDLE"], {"node_addr": "100.64.9.9"}),
    ):  # fmt: skip
        assert replaced((ready(noted=noted, since_s=1e6), states, parts), FIT) == []
    assert replaced((ready(noted=UnfitReason.SILENT, heartbeat_at=ago(1e6)), ["IDLE"], {}), FIT) == []


@pytest.mark.parametrize(
    ("changes", "but"),
    [
        ({"pool": replace(POOL, replace_unfit=False)}, "the pool says no"),
        ({"gpus": None}, "a pool without a target is held as it is"),
        ({"gpus": 3}, "it lacks one already"),
        (
            {
                "cooldowns": {
                    CooldownKey("replace:h100"): Cooldown(
                        CooldownKey("replace:h100"), ago(-60), "x", 1, CooldownCause.UNFIT
                    )
                }
            },
            "one was, just now",
        ),
        (
            {
                "cooldowns": {
                    CooldownKey("pool:h100"): Cooldown(CooldownKey("pool:h100"), ago(-60), "x", 1, CooldownCause.BOOTS)
                }
            },
            "nothing is rented for it",
        ),
    ],
)
def test_not_now(changes: dict[str, Any], but: str) -> None:
    assert replaced(BAD, FIT, **changes) == [], but


def test_one_at_a_time_the_one_that_is_unfit_for_longest() -> None:
    older = (ready(3, noted=UnfitReason.DRAINED, since_s=3000.0), ["IDLE", "DRAIN"], KILL)
    assert replaced(BAD, FIT, older) == [older[0].name]
    coming = (machine(Phase.BOOTING, index=4), ["DOWN"], {})
    assert replaced(BAD, FIT, coming) == []


def test_an_unfit_node_goes_first_when_the_pool_shrinks() -> None:
    """Before fit ones that are newer, dearer, idle, or not READY yet."""
    old = (replace(BAD[0], created_at=ago(90000)), ["IDLE", "DRAIN"], KILL)
    coming = (machine(Phase.BOOTING, index=4), ["DOWN"], {})
    steps = planned(old, FIT, coming, gpus=2)
    assert [one.subject for one in steps if isinstance(one, p.Remove)] == [old[0].name]
    assert not [one for one in steps if isinstance(one, p.Replace)]
    busy = (old[0], ["MIXED", "DRAIN"], KILL)
    other = (ready(2), ["MIXED"], {})
    steps = planned(busy, other, gpus=1, jobs={old[0].slot: "7", other[0].slot: "8"})
    assert [one.subject for one in steps if isinstance(one, p.Remove)] == [old[0].name]
    person = (replace(BAD[0], created_at=ago(90000)), ["IDLE", "DRAIN"], MINE)
    steps = planned(person, (replace(FIT[0], created_at=ago(100)), ["IDLE"], {}), gpus=1)
    assert [one.subject for one in steps if isinstance(one, p.Remove)] == [FIT[0].name], "a person's has no place"


def test_what_proves_that_replacing_does_good() -> None:
    cooldown = Cooldown(
        CooldownKey.of_replacements("h100"), NOW - timedelta(seconds=PROOF_S), "x", 1, CooldownCause.UNFIT
    )
    begun = cooldown.until - timedelta(seconds=600)
    new = ready(created_at=begun + timedelta(seconds=60), ready_at=ago(PROOF_S))

    def proves(m: Machine, states: list[str], parts: dict[str, Any] | None = None) -> bool:
        return proved(cooldown, [m], ClusterView.of(seen((m, states, parts or {})), Desired("lab", {}, {}).policy, NOW))

    assert proves(new, ["IDLE"])
    assert not proves(new, ["IDLE", "DRAIN"], KILL)
    assert not proves(replace(new, created_at=begun - timedelta(seconds=60)), ["IDLE"]), "it was there before"
    assert not proves(replace(new, ready_at=ago(PROOF_S - 60)), ["IDLE"]), "not for long enough"


@pytest.mark.parametrize(
    ("run_s", "uptime_s", "at_work", "changes", "lost"),
    [
        (300.0, 60.0, 0, {}, ("7",)),  # it started four minutes before the boot
        (300.0, 60.0, 1, {}, None),  # its agent sees a job
        (50.0, 60.0, 0, {}, None),  # it started after the boot
        (65.0, 60.0, 0, {}, None),  # or may have
        (300.0, 0.0, 0, {}, None),  # an agent that does not say when it booted
        (None, 60.0, 0, {}, None),
        (300.0, 60.0, 0, {"requeue": False}, None),
        (300.0, 60.0, 0, {"batch": False}, None),
    ],
)
def test_jobs_that_a_boot_ended_are_queued_again(
    run_s: float | None, uptime_s: float, at_work: int, changes: dict[str, Any], lost: tuple[str, ...] | None
) -> None:
    m = ready()
    shot = seen((m, ["MIXED"], {}), jobs={m.slot: "7"},
                reports={m.name: AgentReport(at=ago(5), uptime_s=uptime_s, jobs=at_work)})  # fmt: skip
    assert isinstance(shot.slurm, Fresh)
    (job,) = shot.slurm.value.jobs
    view = replace(shot.slurm.value, jobs=(replace(job, run_s=run_s, **changes),))
    shot = replace(shot, slurm=Fresh(view, NOW))
    found = next_step(m, PlanInput.of(shot, Desired("lab", {}, {}).policy, NOW, {}))
    assert (found.jobs if isinstance(found, p.RequeueLostJobs) else None) == lost


@pytest.mark.parametrize(
    ("run_s", "at_work", "changes", "reloaded_s", "asked"),
    [
        (186.0, 0, {}, None, True),
        (184.0, 0, {}, None, False),  # at the time of the report it had run for 179 s
        (186.0, 1, {}, None, False),  # its agent sees a job
        (186.0, 0, {"requeue": False}, None, True),  # Slurm decides what becomes of it
        (186.0, 0, {"batch": False}, None, False),  # its processes may be elsewhere
        (None, 0, {}, None, False),
        (186.0, 0, {}, 29.0, False),
        (186.0, 0, {}, 31.0, True),
    ],
)
def test_a_node_without_the_process_of_its_batch_job_registers_again(
    run_s: float | None, at_work: int, changes: dict[str, Any], reloaded_s: float | None, asked: bool
) -> None:
    m = ready(slurmd_reloaded_at=ago(reloaded_s) if reloaded_s else None)
    shot = seen((m, ["MIXED"], {}), jobs={m.slot: "7"},
                reports={m.name: AgentReport(at=ago(5), uptime_s=1e6, jobs=at_work)})  # fmt: skip
    assert isinstance(shot.slurm, Fresh)
    (job,) = shot.slurm.value.jobs
    given = Desired("lab", {}, {}).policy

    def step(nodes: tuple[str, ...], slurm_s: float = 0.0) -> p.Step | None:
        found = replace(job, run_s=run_s, nodes=nodes, **changes)
        view = replace(shot.slurm.value, jobs=(found,))  # type: ignore[union-attr]
        return next_step(m, PlanInput.of(replace(shot, slurm=Fresh(view, ago(slurm_s))), given, NOW, {}))

    assert isinstance(step((m.slot,)), p.ReloadSlurmd) == asked
    assert isinstance(step((m.slot, "h100-9")), p.ReloadSlurmd) == asked
    assert not isinstance(step(("h100-0", m.slot)), p.ReloadSlurmd), "only its first node has the batch step"
    assert not isinstance(step((m.slot,), 6.0), p.ReloadSlurmd), "Slurm was read before the agent's report"


@pytest.mark.parametrize(("at_work", "asked"), [(0, True), (1, False)])
def test_a_node_that_leaves_does_not_wait_for_ever_for_a_job_that_is_not_there(at_work: int, asked: bool) -> None:
    m = replace(ready(), phase=Phase.DRAINING, drained_at=ago(30))
    shot = seen((m, ["MIXED", "DRAIN"], {"reason": "meshd: no longer needed"}), jobs={m.slot: "7"},
                reports={m.name: AgentReport(at=ago(5), uptime_s=1e6, jobs=at_work)})  # fmt: skip
    assert isinstance(shot.slurm, Fresh)
    (job,) = shot.slurm.value.jobs
    view = replace(shot.slurm.value, jobs=(replace(job, run_s=186.0),))
    found = next_step(m, PlanInput.of(replace(shot, slurm=Fresh(view, NOW)), Desired("lab", {}, {}).policy, NOW, {}))
    assert isinstance(found, p.ReloadSlurmd) == asked
    assert found is None or asked
