"""The API's documents, made from the journal and the last tick. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from meshd.api import schema as s
from meshd.daemon.observe.agent_reports import LogTail
from meshd.daemon.observe.slurm_ping import DOWN, SlurmPing
from meshd.model.desired import Desired, Policy, Pool, options_of
from meshd.model.freeze import Freeze
from meshd.model.machine import COSTS_MONEY, COUNTS_AS_SUPPLY, Machine, Phase
from meshd.model.observed import AgentReport, Fresh, Observation, SlurmNode, SlurmView, Snapshot, value_of
from meshd.model.path import MeasuredPath, PeerPaths
from meshd.plan import fitness, paths
from meshd.plan.fitness import is_ready, unfit
from meshd.plan.placement import unit_of
from meshd.plan.plan_input import ClusterView
from meshd.plan.provider_capabilities import is_pod, limits_of
from meshd.plan.scale import units
from meshd.plan.unfit_advice import cure, next_step
from meshd.plan.waiting import WaitingJob
from meshd.store.events import Event


def slurm_of(snapshot: Snapshot | None) -> SlurmView | None:
    """Slurm's newest reading; None while Slurm cannot be read."""
    return value_of(snapshot.slurm) if snapshot else None


def sources(snapshot: Snapshot, now: datetime, slurm_ping: SlurmPing | None = None) -> list[s.SourceView]:
    """Every source, whether it can be read, and the age of its last reading."""
    named: list[tuple[str, Observation[object]]] = [("tailnet", snapshot.tailnet), ("slurm", snapshot.slurm)]
    named += [(f"provider:{name}", seen) for name, seen in sorted(snapshot.instances.items())]
    named += [(f"offers:{name}", seen) for name, seen in sorted(snapshot.offers.items())]
    rows = [
        s.SourceView(name=name, ok=True, at=seen.at, age_s=round((now - seen.at).total_seconds(), 1))
        if isinstance(seen, Fresh)
        else s.SourceView(name=name, ok=False, reason=seen.reason, since=seen.since)
        for name, seen in named
    ]
    down = slurm_ping is not None and slurm_ping.is_down(snapshot.slurm)
    return [
        row.model_copy(update={"ok": False, "reason": DOWN}) if down and row.ok and row.name == "slurm" else row
        for row in rows
    ]


def cluster_view_of(snapshot: Snapshot | None, policy: Policy, now: datetime) -> ClusterView:
    """What is known of single nodes; empty before the first tick."""
    return ClusterView.of(snapshot, policy, now) if snapshot else ClusterView(now, policy)


def pool_view(
    pool: Pool,
    partition: str,
    machines: Sequence[Machine],
    desired: Desired,
    slurm: SlurmView | None,
    cluster_view: ClusterView,
) -> s.PoolView:
    """A pool: its target, what it has of it, and its jobs."""
    target = desired.target(pool)
    target_gpus = target.gpus if target else 0
    jobs = [job for job in slurm.jobs if job.partition == partition] if slurm else []
    pending = [job for job in jobs if job.state == "PENDING"]
    by_slot: dict[str, int] = {m.slot: units(m) for m in machines}
    given = sum(by_slot.get(slot, pool.gpus_per_node or 1) for slot in {slot for job in jobs for slot in job.nodes})
    return s.PoolView(
        name=pool.name,
        partition=partition,
        target_id=(target.id or None) if target else None,
        target_gpus=target_gpus,
        wanted_gpus=max(target_gpus, given),
        unit=unit_of(pool),
        options=list(options_of(target)) if target else [],
        ready_gpus=sum(units(m) for m in machines if is_ready(m, cluster_view)),
        unfit_gpus=sum(
            units(m) for m in machines if m.phase is Phase.READY and not m.removal and not is_ready(m, cluster_view)
        ),
        unfit={why.value: number for (_, why), number in sorted(fitness.count(machines, cluster_view).items())},
        machines=dict(Counter(m.phase.value for m in machines)),
        pods=sum(is_pod(m, desired.policy.pod_limits) for m in machines),
        usd_per_hour=round(sum(m.usd_per_hour for m in machines if m.phase in COSTS_MONEY), 4),
        queue=s.QueueView(
            running=sum(bool(job.nodes) for job in jobs),
            pending=len(pending),
            pending_gpus=sum(j.gpus for j in pending),
        ),
    )


def gpu_load(report: AgentReport | None) -> list[s.GpuLoadRow]:
    """The load of a machine's GPUs."""
    return [
        s.GpuLoadRow(index=gpu.index, utilization_percent=gpu.utilization_percent, memory_used_mib=gpu.memory_used_mib)
        for gpu in (report.gpus if report else ())
    ]


def path_row(path: MeasuredPath | None, now: datetime) -> s.PathRow | None:
    """A path; None when it is not known."""
    if path is None:
        return None
    return s.PathRow(
        kind=path.kind.value, relay=path.relay, rtt_ms=round(path.rtt_s * 1000, 2),
        throughput_estimate=path.throughput_estimate.value, age_s=round((now - path.at).total_seconds(), 1),
    )  # fmt: skip


def peer_paths(found: PeerPaths | None) -> s.PeerPathsView | None:
    """The paths to other nodes; None when the agent has not reported."""
    if found is None:
        return None
    return s.PeerPathsView(
        direct=found.direct, relayed=found.relayed, silent=found.silent, not_direct=list(found.not_direct),
        rtt_ms=round(found.rtt_s * 1000, 2) if found.rtt_s is not None else None,
    )  # fmt: skip


_WORKS = frozenset({"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "PLANNED", "RESERVED"})
"""States of a node that takes jobs or has some."""


def slurm_reason(node: SlurmNode | None) -> str:
    """Why Slurm keeps jobs off the node; "" while it does not. Slurm keeps an old reason on a node that works again."""
    return node.reason if node is not None and node.states - _WORKS else ""


def slurm_state(node: SlurmNode | None) -> str:
    """As sinfo shows it; "" for a node that is not known."""
    return "+".join(sorted(node.states, key=_base_first)) if node else ""


def node_row(machine: Machine, slurm: SlurmView | None, cluster_view: ClusterView) -> s.NodeRow:
    """One machine."""
    now, found = cluster_view.now, fitness.unfit(machine, cluster_view)
    there = machine.line_published or machine.slurmd_started
    node = slurm.nodes.get(machine.slot) if slurm and there else None
    return s.NodeRow(
        machine=machine.name, slot=machine.slot, pool=machine.pool, provider=machine.provider,
        phase=machine.phase.value, since=machine.phase_since, region=machine.offer.zone or machine.region,
        instance_type=machine.offer.instance_type, gpu=machine.offer.gpu, gpus=machine.gpus,
        pod=is_pod(machine, cluster_view.policy.pod_limits),
        address=machine.tailnet_ip, path=machine.path, joined=machine.facts is not None,
        ssh_host_key=machine.facts.ssh_host_key if machine.facts else "",
        slurm_state=slurm_state(node), slurm_reason=slurm_reason(node),
        jobs=list(slurm.jobs_on(machine.slot)) if slurm and node else [],
        heartbeat_age_s=round((now - machine.heartbeat_at).total_seconds(), 1) if machine.heartbeat_at else None,
        usd_per_hour=machine.usd_per_hour, reason=machine.reason, failure=machine.failure,
        unfit=found.why.value if found else "", unfit_text=found.words if found else "",
        unfit_since=found.since if found else None, gpu_load=gpu_load(cluster_view.report(machine)),
        lacks=list(machine.lacks),
        head_path=path_row(paths.head_path(machine, cluster_view), now),
        settings=section_rows(cluster_view.report(machine)),
        by_queue=machine.by_queue, for_jobs=list(machine.for_jobs),
    )  # fmt: skip


def freeze_view(freeze: Freeze | None) -> s.FreezeView | None:
    """The freeze that holds; None for none."""
    return s.FreezeView(since=freeze.at, by=freeze.by, reason=freeze.reason) if freeze is not None else None


def waiting_row(job: WaitingJob) -> s.WaitingRow:
    """A job that waits for machines."""
    return s.WaitingRow(
        job=job.job, user=job.user, pool=job.pool, nodes=job.nodes, ready=job.ready, wait=job.wait.value,
        until=job.until, text=job.text,
    )  # fmt: skip


def section_rows(report: AgentReport | None) -> list[s.SectionRow] | None:
    """A machine's node settings; None when they are not known."""
    if report is None or report.sections is None:
        return None
    return [
        s.SectionRow(name=name, state=one.state.value, text=one.detail, since=one.since)
        for name, one in report.sections.items()
    ]


def health_view(
    machine: Machine, machines: Sequence[Machine], desired: Desired, cluster_view: ClusterView, log: LogTail | None
) -> s.HealthView:
    """All that is known of how a machine is. `machines` are its pool's."""
    found, node = unfit(machine, cluster_view), cluster_view.node(machine)
    report, peer = cluster_view.report(machine), cluster_view.peer(machine)
    tailnet = ""
    if peer is not None:
        seen = f" since {peer.last_seen:%Y-%m-%d %H:%M:%S} UTC" if peer.last_seen else ""
        tailnet = f"online {peer.path}".rstrip() if peer.online else f"offline{seen}"
    elif cluster_view.tailnet is not None and machine.tailnet_id:
        tailnet = "its device was deleted"
    heard = machine.heartbeat_at
    view = s.HealthView(
        unfit=found.why.value if found else "",
        text=found.words if found else "",
        since=found.since if found else None,
        next=next_step(machine, found, machines, desired, cluster_view)
        if found and machine.phase is Phase.READY
        else "",
        cure=cure(machine, found) if found else "",
        slurm_state=slurm_state(node),
        slurm_reason=(reason := slurm_reason(node)),
        slurm_reason_by=node.reason_by if node and reason else "",
        slurm_reason_at=node.reason_at if node and reason else None,
        tailnet=tailnet,
        head_path=path_row(paths.head_path(machine, cluster_view), cluster_view.now),
        peer_paths=peer_paths(report.peer_paths) if report else None,
        heartbeat_age_s=round((cluster_view.now - heard).total_seconds(), 1) if heard else None,
        settings=section_rows(report),
        limits=limits_of(machine, desired.policy.pod_limits),
        log=list(log.lines) if log else [],
        log_at=log.at if log else None,
    )
    if machine.facts is not None:
        facts = ("os", "arch", "slurmd_version", "tailscale_version", "ssh_host_key")
        view = view.model_copy(update={name: getattr(machine.facts, name) for name in facts})
    if report is None:
        return view
    return view.model_copy(
        update={
            "reported_at": report.at,
            "agent_version": report.agent_version,
            "uptime_s": report.uptime_s,
            "load1": report.load1,
            "slurmd_alive": report.slurmd_dead_since is None,
            "munged_alive": report.munge_dead_since is None,
            "jobs_seen": report.jobs,
            "gpus": gpu_load(report),
            "gpu_fault": report.gpu_fault,
        }
    )


def _base_first(state: str) -> tuple[bool, str]:
    return state not in {"IDLE", "ALLOCATED", "MIXED", "DOWN", "UNKNOWN", "ERROR", "FUTURE"}, state


def event_row(event: Event, machine: Machine | None) -> s.EventRow:
    """One event; `machine` is the one it is about."""
    fields = {k: v if isinstance(v, str | int | float | bool | None) else str(v) for k, v in event.fields.items()}
    pool = machine.pool if machine else str(event.fields.get("pool", ""))
    return s.EventRow(
        id=event.id, at=event.at, kind=event.kind, text=event.text, machine=event.machine, pool=pool, fields=fields
    )


def status_line(machines: Sequence[Machine], problems: Sequence[s.ProblemView], cluster_view: ClusterView) -> str:
    """One line for `systemctl status`."""
    ready = sum(m.gpus for m in machines if is_ready(m, cluster_view))
    coming = sum(m.phase in COUNTS_AS_SUPPLY and m.phase is not Phase.READY for m in machines)
    leaving = sum(m.phase in {Phase.DRAINING, Phase.TERMINATING, Phase.LOST} for m in machines)
    usd = sum(m.usd_per_hour for m in machines if m.phase in COSTS_MONEY)
    worst = [p.text for p in problems if p.severity == "error"]
    text = f"{ready} GPUs ready, {coming} machines coming, {leaving} leaving, {usd:.2f} USD/h"
    return f"{text}; {worst[0]}" if worst else text
