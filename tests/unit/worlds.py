"""Plain values for tests of the core: a pool, an offer, a machine, a snapshot."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from meshd.model.desired import Policy
from meshd.model.hardware import GpuFact, NodeFacts, NodeShape
from meshd.model.host import Host
from meshd.model.ids import MachineName, PoolName, SlotName
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh, SlurmJob, SlurmNode, SlurmView, Snapshot, TailnetPeer, TailnetView, Unavailable
from meshd.plan.plan_input import ClusterView
from meshd.provider_api import Instance, InstanceId, InstanceState, Offer, ProviderName

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AWS = ProviderName("aws")
OFFER = Offer(AWS, "r1", "r1a", "g.1", "h100-sxm", 1, 80, 8, 65536, 2.0)
FACTS = NodeFacts(NodeShape(8, 1, 1, 8, 1, 65536), (), "24.11.5", "1.102.5", "0.1.0", "debian 13", "x86_64", 0.0)
HEAD = "100.64.0.1"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def machine(phase: Phase, *, index: int = 1, age_s: float = 10.0, **changes: Any) -> Machine:
    """A machine as it is when all went well so far."""
    slot = f"h100-{index}"
    later = {Phase.CONFIGURING, Phase.TESTING, Phase.READY, Phase.DRAINING}
    started = {Phase.TESTING, Phase.READY, Phase.DRAINING}
    plain = Machine(
        name=MachineName(f"lab-{slot}-abcde{index}"), pool=PoolName("h100"), slot=SlotName(slot), provider="aws",
        offer=OFFER, phase=phase, phase_since=ago(age_s), created_at=ago(3600), reason="because",
        instance_id="" if phase in {Phase.REQUESTED, Phase.LAUNCHING} else f"i-{index}", region="r1",
        launch_attempts=0 if phase is Phase.REQUESTED else 1,
        launch_called_at=None if phase is Phase.REQUESTED else ago(3600),
        tailnet_ip=f"100.64.0.{index + 1}" if phase in later | {Phase.JOINING} else "",
        facts=FACTS if phase in later else None, munge_ok=phase in started, line_published=phase in started,
        slurmd_started=phase in started, heartbeat_at=ago(5) if phase in later else None,
        slurmd_start_ordered_at=ago(1000) if phase in started else None,
    )  # fmt: skip
    return replace(plain, **changes)


GPU = GpuFact(0, "NVIDIA H100 80GB HBM3", "GPU-0", 81559, "/dev/nvidia0")


def host(index: int, *, there: bool = True, sleeps: bool = False, **changes: Any) -> Host:
    """An owned machine with one GPU, bound to the slot with this index."""
    plain = Host(
        f"pc-{index}", PoolName("h100"), SlotName(f"h100-{index}"), NOW, NOW, enrolled_at=NOW, token_used=True,
        device_id=f"n-pc-{index}", seen_at=NOW if there else None, facts=replace(FACTS, gpus=(GPU,)),
        wake_mac="3c:ec:ef:00:12:34" if sleeps else "", sleep_command=("systemctl", "suspend") if sleeps else (),
    )  # fmt: skip
    return replace(plain, **changes)


def instance(m: Machine, state: InstanceState = InstanceState.RUNNING, **changes: Any) -> Instance:
    plain = Instance(AWS, InstanceId(m.instance_id or "i-new"), m.name, state, "r1", "g.1", launched_at=ago(3600))
    return replace(plain, **changes)


def node(m: Machine, *states: str, **changes: Any) -> SlurmNode:
    return replace(SlurmNode(m.slot, m.tailnet_ip, frozenset(states or {"IDLE"})), **changes)


def slurm(*nodes: SlurmNode, jobs: dict[str, str] | None = None) -> SlurmView:
    running = tuple(SlurmJob(job, "u", "h100", "RUNNING", (slot,)) for slot, job in (jobs or {}).items())
    return SlurmView("24.11.5", {n.name: n for n in nodes}, running)


def peer(m: Machine) -> TailnetPeer:
    return TailnetPeer(f"n-{m.name}", m.name, m.tailnet_ip or "100.64.0.99", online=True)


def tailnet(*peers: TailnetPeer, healthy: bool = True) -> TailnetView:
    return TailnetView(HEAD, "head", healthy, (), {p.id: p for p in peers})


GONE_DARK = Unavailable("does not answer", ago(60))


def snapshot(**parts: Any) -> Snapshot:
    """All sources answer, and show nothing, unless given."""
    plain = Snapshot(
        instances={"aws": Fresh((), NOW)}, offers={"aws": Fresh((OFFER,), NOW)}, tailnet=Fresh(tailnet(), NOW),
        slurm=Fresh(slurm(), NOW), node_addrs={},
    )  # fmt: skip
    return replace(plain, **parts)


def cluster_view(policy: Policy | None = None, **parts: Any) -> ClusterView:
    """What is known of single nodes at NOW."""
    return ClusterView.of(snapshot(**parts), policy or Policy(), NOW)


def around(m: Machine, *states: str, jobs: dict[str, str] | None = None, **parts: Any) -> Snapshot:
    """Every source answers and shows this machine alive and well; its node in these states."""
    on_line = m.tailnet_ip != ""
    whole: dict[str, Any] = {
        "instances": {"aws": Fresh((instance(m),), NOW)},
        "tailnet": Fresh(tailnet(peer(m)), NOW),
        "slurm": Fresh(slurm(*([node(m, *states)] if on_line else []), jobs=jobs), NOW),
        "node_addrs": {m.slot: m.tailnet_ip} if m.line_published else {},
    }
    return snapshot(**{**whole, **parts})
