"""What a real Slurm does to nodes that are not fit, and that meshd reads it right: two versions, in hosts in a box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.node_steps import NodeSteps
from meshd.errors import SlurmError
from meshd.model.desired import Policy
from meshd.model.machine import Machine, Phase, Removal, UnfitReason
from meshd.model.observed import Fresh, SlurmNode
from meshd.model.plan import Drain, Leave, Undrain
from meshd.plan.fitness import unfit
from meshd.plan.plan_input import ClusterView
from meshd.runtime.clock import SystemClock
from meshd.slurm.nodes import JoinedNode
from meshd.store.journal import Journal
from tests.integration.slurm_lab import START_S
from tests.integration.test_slurm_real import Cluster, cluster, lab, pytestmark
from tests.live import live_settings
from tests.unit.worlds import machine, peer, snapshot, tailnet
from tests.waiting import until

__all__ = ["cluster", "lab", "pytestmark"]  # fixtures and marks that pytest finds here


class Deaf:
    """Agents that do not answer: their slurmd runs on."""

    async def command(self, machine: str, verb: str, args: Mapping[str, object], timeout_s: float) -> str:
        return "its agent did not answer"


def record(node: JoinedNode) -> Machine:
    """The journal's record of a machine that has been READY for an hour."""
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    m = machine(Phase.READY, tailnet_ip=node.node_addr)
    return replace(m, slot=node.slot, phase_since=long_ago, heartbeat_at=datetime.now(UTC), launch_attempts=1)


async def judged(cluster: Cluster, m: Machine) -> tuple[UnfitReason | None, SlurmNode]:
    """What meshd makes of the node as Slurm shows it now."""
    view, now = await cluster.client.view(), datetime.now(UTC)
    m = replace(m, heartbeat_at=now)
    seen = snapshot(slurm=Fresh(view, now), tailnet=Fresh(tailnet(peer(m)), now))
    found = unfit(m, ClusterView.of(seen, Policy(), now))
    return (found.why if found else None), view.nodes[m.slot]


async def judged_until(cluster: Cluster, m: Machine, why: UnfitReason | None) -> SlurmNode:
    async def look() -> tuple[UnfitReason | None, SlurmNode]:
        return await judged(cluster, m)

    return (await until(look, lambda seen: seen[0] is why, f"{m.slot} is {why}", every_s=0.2))[1]


async def test_slurms_own_verdicts_and_a_persons(cluster: Cluster) -> None:
    """A refused registration, a failed prolog, a drain by hand: each is told from the others."""
    good = cluster.node("m1", "cpu-1")
    if not cluster.old:  # before 23.11 all nodes have the pool's smallest shape
        proud = replace(good, shape=replace(good.shape, memory_mib=100 * good.shape.memory_mib))
        await cluster.publisher.apply(cluster.wanted(proud))
        cluster.start_slurmd("m1", "cpu-1")
        refused = await judged_until(cluster, record(proud), UnfitReason.INVALID)
        assert refused.reason.startswith("Low RealMemory")
        assert refused.reason_by in {"slurm", "root"}
        assert refused.reason_at is not None
        assert abs(datetime.now(UTC) - refused.reason_at) < timedelta(minutes=10)
        await cluster.publisher.apply(cluster.wanted(good))
        cluster.lab.hosts["m1"].stop("slurmd")
    else:
        await cluster.publisher.apply(cluster.wanted(good))
    cluster.start_slurmd("m1", "cpu-1")
    m = record(good)
    await judged_until(cluster, m, None)

    conf = cluster.head.conf_dir / "slurm.conf"
    conf.write_text(conf.read_text() + "Prolog=/bin/false\n")
    await cluster.client.reconfigure()

    async def work() -> tuple[UnfitReason | None, SlurmNode]:
        """Jobs come until slurmd has read its new configuration, and its prolog fails."""
        if not (await cluster.client.view()).jobs:
            cluster.sbatch("-p", "cpu", "-N1", "--wrap", "true")
        return await judged(cluster, m)

    drained = (
        await until(work, lambda seen: seen[0] is UnfitReason.DRAINED, "its prolog has failed", START_S, every_s=0.5)
    )[1]
    assert drained.reason.startswith(("Prolog error", "batch job complete failure"))
    cluster.head.call("scancel", "-u", "root")
    conf.write_text(conf.read_text().replace("Prolog=/bin/false\n", ""))
    await cluster.client.reconfigure()
    await cluster.client.resume(m.slot)
    await judged_until(cluster, m, None)

    cluster.head.call("scontrol", "update", f"nodename={m.slot}", "state=drain", "reason=bad fan")
    mine = await judged_until(cluster, m, UnfitReason.BY_PERSON)
    assert (mine.reason, mine.reason_by) == ("bad fan", "root")
    await cluster.client.resume(m.slot)
    await cluster.client.drain(m.slot, "drained by alice: mine")
    await judged_until(cluster, m, UnfitReason.BY_PERSON)
    cluster.lab.hosts["m1"].stop("slurmd")


async def test_meshds_own_drain_alone_is_lifted(cluster: Cluster, tmp_path: Path) -> None:
    good = cluster.node("m1", "h100-1")
    await cluster.publisher.apply(cluster.wanted(good))
    cluster.start_slurmd("m1", "h100-1")
    m = record(good)
    await judged_until(cluster, m, None)
    journal = Journal(tmp_path / "j.db")
    machine_store = MachineStore(journal, SystemClock(), lambda: None)
    journal.put(m, "phase", "given", m.phase_since)
    steps = NodeSteps(machine_store, cluster.client, Deaf(), None, live_settings())
    await steps.drain(Drain(m.name, "GPU fault: lost", m.slot))
    assert (await judged_until(cluster, m, UnfitReason.BY_MESHD)).reason == "meshd: GPU fault: lost"
    await steps.repairs.undrain(Undrain(m.name, "over", m.slot))
    await judged_until(cluster, m, None)
    await cluster.client.drain(m.slot, "drained by alice: mine")
    await steps.repairs.undrain(Undrain(m.name, "over", m.slot))
    await judged_until(cluster, m, UnfitReason.BY_PERSON)
    journal.close()
    cluster.lab.hosts["m1"].stop("slurmd")


async def test_a_node_that_was_removed_by_force_is_not_opened_again(cluster: Cluster, tmp_path: Path) -> None:
    """Its slurmd runs on and registers anew: slurmctld takes a node that is only DOWN back into service."""
    good = cluster.node("m1", "h100-1")
    await cluster.publisher.apply(cluster.wanted(good))
    cluster.start_slurmd("m1", "h100-1")
    await cluster.idle("h100-1")
    job = cluster.sbatch("-p", "h100", "--no-requeue", "-N1", "--wrap", "sleep 600")
    await cluster.job_until(job, "RUNNING")
    journal = Journal(tmp_path / "j.db")
    machine_store = MachineStore(journal, SystemClock(), lambda: None)
    m = replace(record(good), phase=Phase.DRAINING, removal=Removal.FORCED, reason="removed at once")
    journal.put(m, "phase", "given", m.phase_since)
    steps = NodeSteps(machine_store, cluster.client, Deaf(), None, live_settings())
    await steps.leave(Leave(m.name, "removed by force", m.slot, forced=True))
    assert machine_store.get(m.name).left_slurm
    cluster.lab.hosts["m1"].stop("slurmd")
    cluster.start_slurmd("m1", "h100-1")

    async def look() -> SlurmNode:
        return (await cluster.client.view()).nodes[m.slot]

    back = await until(look, lambda node: node.up and not node.busy, "its slurmd has registered again", every_s=0.2)
    assert back.drained
    await cluster.publisher.apply(cluster.wanted())
    assert "DOWN" in (await look()).states
    journal.close()
    cluster.lab.hosts["m1"].stop("slurmd")


async def test_without_the_drain_it_is_opened_again(cluster: Cluster) -> None:
    """What the drain is for: a node that is DOWN alone comes back, and its line cannot become a free slot."""
    good = cluster.node("m1", "h100-1")
    await cluster.publisher.apply(cluster.wanted(good))
    cluster.start_slurmd("m1", "h100-1")
    await cluster.idle("h100-1")
    await cluster.client.set_down("h100-1", "meshd: left")
    cluster.lab.hosts["m1"].stop("slurmd")
    cluster.start_slurmd("m1", "h100-1")
    await cluster.idle("h100-1")
    with pytest.raises(SlurmError, match="open to jobs"):
        await cluster.publisher.apply(cluster.wanted())
    cluster.lab.hosts["m1"].stop("slurmd")
