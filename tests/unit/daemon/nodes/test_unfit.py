"""Heartbeats come in, Slurm says what it says, and what follows is done, written down and shown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from meshd.api.node_schema import GpuLoadIn, HeartbeatIn, PollIn
from meshd.daemon.head_api import views
from meshd.daemon.nodes import unfit as unfit_nodes
from meshd.daemon.observe.agent_reports import LINES, NodeLogs
from meshd.model.desired import Target
from meshd.model.hardware import GpuFact
from meshd.model.machine import Machine, Phase, Removal, UnfitReason
from meshd.model.observed import Fresh, SlurmJob, SlurmNode
from meshd.plan.plan_input import ClusterView
from tests.clocks import HandClock
from tests.node_room import node_parts
from tests.unit.daemon.small import Small
from tests.unit.daemon.standins import LogAgent, MungeKey
from tests.unit.worlds import FACTS, NOW, ago, instance, machine, node, peer, snapshot, tailnet

GPU = GpuFact(0, "NVIDIA H100", "GPU-0", 81559, "/dev/nvidia0")
FIRST, SECOND = (
    machine(Phase.READY, index=index, age_s=1000.0, ready_at=ago(1000), facts=replace(FACTS, gpus=(GPU,)),
            tailnet_id=f"n-{machine(Phase.READY, index=index).name}")
    for index in (1, 2)
)  # fmt: skip
WELL = HeartbeatIn(
    boot_id="a", uptime_s=100.0, load1=0.5, slurmd_alive=True, munged_alive=True,
    gpus=(GpuLoadIn(index=0, utilization_percent=97, memory_used_mib=70000),),
)  # fmt: skip


class World(Small):
    """Two nodes; the agents' heartbeats come in through the node API."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, FIRST, SECOND)
        self.journal.set_target(Target("h100", 2), "said", NOW)
        self.node_service = node_parts(
            self.machine_store, munge_key=cast("Any", MungeKey()), reports=self.reports
        ).service
        self.slurm.set(node(FIRST), node(SECOND))
        self.offline: set[str] = set()

    async def beat(self, m: Machine, heartbeat: HeartbeatIn = WELL) -> None:
        """One poll of an agent."""
        await self.node_service.poll(m.name, PollIn(phase="serving", munge_ok=True, heartbeat=heartbeat), 0.0)

    async def tick(self, after_s: float = 5.0) -> None:
        """Look at everything anew, and let what follows be done."""
        self.clock.t_s += after_s
        now = self.clock.now()
        living = [m for m in self.journal.machines() if m.instance_id]
        devices = [
            replace(peer(m), online=m.name not in self.offline, last_seen=NOW if m.name in self.offline else None)
            for m in living
        ]
        self.seen = snapshot(
            instances={"aws": Fresh(tuple(instance(m) for m in living), now)}, tailnet=Fresh(tailnet(*devices), now),
            slurm=Fresh(self.slurm.seen, now), node_addrs={m.slot: m.tailnet_ip for m in living if not m.left_slurm},
            reports=dict(self.reports.current),
        )  # fmt: skip
        self.reconciler.tick()
        await self.settle()

    async def go_on(self, minutes: float, sick: Mapping[str, HeartbeatIn] | None = None) -> None:
        """Both agents speak every 20 s, and the loop looks each time."""
        for _ in range(int(minutes * 3)):
            for m in self.journal.machines():
                if m.phase is Phase.READY and m.name not in self.offline:
                    await self.beat(m, (sick or {}).get(m.slot, WELL))
            await self.tick(20)

    def cluster_view(self) -> ClusterView:
        return ClusterView.of(self.seen, self.desired().policy, self.clock.now())

    def problems(self) -> list[Any]:
        return list(unfit_nodes.problems(self.journal.machines(), self.desired(), self.cluster_view()))

    def holds(self, m: Machine, *states: str, reason: str, by: str = "slurm") -> None:
        """Slurm holds a node so."""
        held: SlurmNode = node(m, *states, reason=reason, reason_by=by, reason_at=self.clock.now())
        self.slurm.seen = replace(self.slurm.seen, nodes={**self.slurm.seen.nodes, m.slot: held})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.executor.aclose(1)
    made.journal.close()


# -- what the agents report is acted on or shown ----------------------------------------------------------------------


async def test_load_and_age_are_shown_and_written_to_no_disk(world: World) -> None:
    events = len(world.journal.events())
    revision = world.journal.revision
    for _ in range(5):
        await world.beat(FIRST)
    assert (len(world.journal.events()), world.journal.revision) == (events, revision)
    await world.tick()
    row = views.node_row(world.get(FIRST.name), world.slurm.seen, world.cluster_view())
    assert [(gpu.utilization_percent, gpu.memory_used_mib) for gpu in row.gpu_load] == [(97, 70000)]
    health = views.health_view(world.get(FIRST.name), [FIRST], world.desired(), world.cluster_view(), None)
    assert (health.unfit, health.slurmd_alive, health.munged_alive, health.load1) == ("", True, True, 0.5)
    assert (health.tailnet, health.os, health.slurmd_version) == ("online", FACTS.os, FACTS.slurmd_version)


async def test_a_broken_gpu_keeps_jobs_off_until_it_is_well(world: World) -> None:
    broken = WELL.model_copy(update={"gpu_fault": "nvidia-smi: GPU is lost", "gpus": ()})
    await world.go_on(1, {FIRST.slot: broken})
    assert world.get(FIRST.name).unfit_reason is UnfitReason.GPU_FAULT
    assert world.slurm.seen.nodes[FIRST.slot].reason == "meshd: GPU fault: nvidia-smi: GPU is lost"
    (problem,) = world.problems()
    assert (problem.severity, problem.machine, problem.pool) == ("warning", FIRST.name, "h100")
    pool = views.pool_view(world.pool, "h100", world.journal.machines(), world.desired(), None, world.cluster_view())
    assert (pool.ready_gpus, pool.unfit_gpus, pool.unfit) == (1, 1, {"gpu_fault": 1})
    await world.go_on(2)
    assert not world.slurm.seen.nodes[FIRST.slot].drained
    assert world.get(FIRST.name).unfit_reason is None
    assert world.problems() == []


async def test_a_gpu_that_nvidia_smi_lacks_is_a_fault(world: World) -> None:
    many = replace(FIRST, facts=replace(FACTS, gpus=(GPU, replace(GPU, index=1, device="/dev/nvidia1"))))
    world.journal.put(many, "phase", "given", NOW)
    await world.go_on(1)
    assert world.get(FIRST.name).unfit_reason is UnfitReason.GPU_FAULT


async def test_a_dead_slurmd_is_started_once(world: World) -> None:
    dead = WELL.model_copy(update={"slurmd_alive": False})
    await world.go_on(3, {FIRST.slot: dead})
    assert world.agents.orders == ["restart_slurmd"]
    assert [problem.machine for problem in world.problems()] == [FIRST.name]


async def test_a_reboot_is_told(world: World) -> None:
    await world.beat(FIRST)
    await world.beat(FIRST, WELL.model_copy(update={"boot_id": "b", "uptime_s": 7.0}))
    await world.beat(FIRST, WELL.model_copy(update={"boot_id": "c"}))
    assert [event.kind for event in world.journal.events(machine=FIRST.name)].count("reboot") == 1, "not one a poll"


async def test_what_is_kept_goes_with_its_machine(world: World) -> None:
    await world.go_on(1)
    assert set(world.reports.current) == {FIRST.name, SECOND.name}
    gone = replace(world.get(FIRST.name), phase=Phase.GONE)
    world.journal.put(gone, "phase", "gone", NOW)
    await world.tick()
    assert set(world.reports.current) == {SECOND.name}


# -- Slurm's verdicts -------------------------------------------------------------------------------------------------


async def test_a_node_that_slurm_drained_is_told_after_a_grace_and_replaced(world: World) -> None:
    world.holds(FIRST, "IDLE", "DRAIN", reason="Kill task failed")
    await world.go_on(0.4)
    assert world.problems() == []
    await world.go_on(1)
    (problem,) = world.problems()
    assert "Kill task failed (slurm, 2026-03-01 12:00:00 UTC)" in problem.text
    assert f"`meshctl undrain {FIRST.slot}`" in problem.cure
    assert world.get(FIRST.name).phase is Phase.READY
    await world.go_on(6)
    assert world.get(FIRST.name).phase is not Phase.READY
    assert "Kill task failed" in world.get(FIRST.name).failure
    assert world.cloud.launched, "another is rented"
    assert world.slurm.seen.nodes[FIRST.slot].reason.startswith("meshd:")
    assert world.get(SECOND.name).phase is Phase.READY


async def test_one_that_gets_a_job_at_the_last_moment_stays(world: World) -> None:
    world.holds(FIRST, "IDLE", "DRAIN", reason="Kill task failed")

    def a_job_begins() -> None:
        """As when somebody opens the node between the look and the step."""
        world.slurm.set(node(FIRST, "ALLOCATED"), node(SECOND), jobs={FIRST.slot: "7"})

    await world.go_on(4)
    world.slurm.before_view = a_job_begins
    await world.go_on(6)
    assert world.get(FIRST.name).phase is Phase.READY


async def test_a_persons_node_is_shown_and_left_alone(world: World) -> None:
    world.holds(FIRST, "IDLE", "DRAIN", reason="drained by alice: bad GPU")
    await world.go_on(60)
    (problem,) = world.problems()
    assert (problem.severity, problem.blocking) == ("info", True)
    coming = [*world.journal.machines(), machine(Phase.BOOTING, index=3)]
    (problem,) = unfit_nodes.problems(coming, world.desired(), world.cluster_view())
    assert not problem.blocking, "who waits for the others waits on"
    assert world.get(FIRST.name).phase is Phase.READY
    assert world.slurm.orders == []
    row = views.node_row(world.get(FIRST.name), world.slurm.seen, world.cluster_view())
    assert (row.unfit, row.slurm_reason) == ("drained_by_person", "drained by alice: bad GPU")


async def test_a_node_that_nobody_hears_is_told_at_once(world: World) -> None:
    """A pod that was killed under a job: control sees that its device is gone, its heartbeat is late."""
    await world.beat(FIRST)
    await world.beat(SECOND)
    world.slurm.set(node(FIRST, "ALLOCATED"), node(SECOND), jobs={FIRST.slot: "7"})
    world.offline.add(FIRST.name)
    await world.tick(14)
    assert world.problems() == []
    await world.beat(SECOND)
    await world.tick(2)
    (problem,) = world.problems()
    assert (problem.severity, problem.machine) == ("warning", FIRST.name)
    assert "no heartbeat for 16 s, tailnet offline since 12:00:00 UTC" in problem.text
    assert "gives it up at 12:02:00 UTC" in problem.text
    assert world.slurm.orders == []


async def test_so_is_one_that_waits_for_its_jobs_before_it_leaves(world: World) -> None:
    leaving = FIRST.moved(Phase.DRAINING, NOW, "removed after its jobs")
    world.journal.put(replace(leaving, removal=Removal.BY_USER, heartbeat_at=NOW), "phase", "given", NOW)
    world.holds(FIRST, "ALLOCATED", "DRAIN", reason="meshd: removed")
    world.slurm.seen = replace(world.slurm.seen, jobs=(SlurmJob("7", "u", "h100", "RUNNING", (FIRST.slot,)),))
    world.offline.add(FIRST.name)
    await world.beat(SECOND)
    await world.tick(16)
    assert [(problem.severity, problem.machine) for problem in world.problems()] == [("warning", FIRST.name)]


async def test_a_pool_that_becomes_unfit_from_one_cause_is_not_rented_again_and_again(world: World) -> None:
    """A prolog that always fails: each node is drained some minutes after it is READY, for a whole day."""
    address = 10
    for _ in range(24 * 120):
        for m in world.journal.machines():
            if m.phase is Phase.BOOTING:  # it becomes a node at once, and its prolog fails
                address += 1
                now = world.clock.now()
                fresh = replace(
                    m.moved(Phase.JOINING, now, "x").moved(Phase.CONFIGURING, now, "x").moved(Phase.TESTING, now, "x")
                    .moved(Phase.READY, now, "x"),
                    tailnet_ip=f"100.64.1.{address}", facts=FIRST.facts, munge_ok=True, line_published=True,
                    slurmd_started=True, ready_at=now, tailnet_id=f"n-{m.name}", heartbeat_at=now,
                )  # fmt: skip
                world.journal.put(fresh, "phase", "given", now)
        for m in world.journal.machines():
            if m.phase is Phase.READY:
                await world.beat(m)
                world.holds(m, "IDLE", "DRAIN", reason="Prolog error")
            elif m.phase is Phase.TERMINATING:
                world.journal.put(replace(m, phase=Phase.GONE), "phase", "gone", world.clock.now())
        await world.tick(30)
    assert 2 <= len({request.token for request in world.cloud.launched}) <= 9
    told = [problem for problem in world.problems() if problem.severity == "error"]
    assert [problem.pool for problem in told] == ["h100"]


# -- slurmd's log -----------------------------------------------------------------------------------------------------


async def test_the_log_is_bounded_clean_and_kept_for_when_nobody_answers() -> None:
    agent = LogAgent()
    logs = NodeLogs(agent, HandClock())
    agent.text = "\n".join(["old"] * 5000) + "\n" + "x" * 5000 + "\nerror: \x1b[31mGPU\x00 lost"
    tail = await logs.fetch("m")
    assert tail is not None
    assert len(tail.lines) == LINES
    assert tail.lines[-1] == "error: ?[31mGPU? lost"
    assert max(len(line) for line in tail.lines) <= 300
    agent.text = None
    assert await logs.fetch("m") == tail
    logs.keep([])
    assert await logs.fetch("m") is None


async def test_the_log_of_a_node_is_fetched_once_when_it_becomes_unfit(world: World) -> None:
    agent = LogAgent()
    logs = NodeLogs(agent, world.clock)
    world.machines.policies.fitness._logs = logs
    world.holds(FIRST, "IDLE", "DRAIN", reason="Kill task failed")
    await world.go_on(3)
    await logs.reconcile()
    assert [(name, verb) for name, verb, _ in agent.asked] == [(FIRST.name, "collect_logs")]


@pytest.mark.parametrize(
    ("states", "shown"),
    [({"IDLE"}, ""), ({"ALLOCATED"}, ""), ({"IDLE", "DRAIN"}, "why"), ({"DOWN"}, "why"), ({"IDLE", "FAIL"}, "why")],
)
def test_a_reason_that_slurm_keeps_on_a_node_that_works_is_not_shown(states: set[str], shown: str) -> None:
    assert views.slurm_reason(SlurmNode("h100-1", "100.64.0.2", frozenset(states), "why")) == shown
