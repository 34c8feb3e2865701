"""Unfit nodes as people see them: problems of `meshctl status`, and the diagnosis of `meshctl explain`. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from meshd.api import schema as s
from meshd.codes import ProblemCode
from meshd.daemon.head_api import views
from meshd.daemon.nodes.reports import LogTail
from meshd.daemon.reporting import problem
from meshd.model.cooldown import CooldownKey
from meshd.model.desired import Desired
from meshd.model.machine import COUNTS_AS_SUPPLY, Machine, Phase, UnfitReason
from meshd.plan.fitness import Unfit, silent, unfit
from meshd.plan.plan_input import ClusterView
from meshd.plan.replace import STRIKES_TOLD
from meshd.plan.unfit_advice import cure, next_step

AT_ONCE = frozenset({UnfitReason.SILENT})
"""Told without a grace: the time that makes it a verdict is one already."""


def problems(machines: Sequence[Machine], desired: Desired, cluster_view: ClusterView) -> Iterable[s.ProblemView]:
    """Nodes that are not fit for longer than the grace, and pools whose replacements become unfit too.

    Of a node that waits for its jobs before it leaves only its silence counts.
    """
    by_pool: dict[str, list[Machine]] = {}
    for machine in machines:
        by_pool.setdefault(machine.pool, []).append(machine)
    for machine in machines:
        leaves = machine.phase is Phase.DRAINING and not machine.left_slurm
        found = silent(machine, cluster_view) if leaves else unfit(machine, cluster_view)
        if found is not None and (leaves or not (machine.removal or machine.failure)) and _lasts(found, cluster_view):
            yield _problem(machine, found, by_pool[machine.pool], desired, cluster_view)
    for name in desired.pools:
        cooldown = desired.cooldowns.get(CooldownKey.of_replacements(name)) or desired.expired_cooldowns.get(
            CooldownKey.of_replacements(name)
        )
        if cooldown is not None and cooldown.strikes >= STRIKES_TOLD:
            yield problem(
                ProblemCode.REPLACEMENTS_UNFIT,
                "error",
                f"{cooldown.strikes} nodes were replaced one after another, and what came in their place did not "
                f"stay fit: the cause is outside of the machines. The last: {cooldown.reason}",
                "look at slurm.conf, prologs and the image; `meshctl explain SLOT` shows slurmd's log",
                pool=name,
            )


def _lasts(found: Unfit, cluster_view: ClusterView) -> bool:
    return found.why in AT_ONCE or cluster_view.now - found.since >= timedelta(
        seconds=cluster_view.policy.unfit_grace_s
    )


def _problem(
    machine: Machine, found: Unfit, machines: Sequence[Machine], desired: Desired, cluster_view: ClusterView
) -> s.ProblemView:
    after = next_step(machine, found, machines, desired, cluster_view)
    pool = desired.pools.get(machine.pool)
    stays = found.deliberate or (pool is not None and not pool.replace_unfit)
    coming = any(
        m.phase in COUNTS_AS_SUPPLY and m.phase is not Phase.READY and m.unfit_reason is None for m in machines
    )
    return problem(
        ProblemCode.NODE_UNFIT,
        "info" if found.deliberate else "warning",
        f"{machine.slot} is not fit: {found.words}" + (f"; {after}" if after else ""),
        cure(machine, found),
        since=found.since,
        machine=machine.name,
        pool=machine.pool,
        blocking=stays and not coming,
    )


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
        slurm_state=views.slurm_state(node),
        slurm_reason=(reason := views.slurm_reason(node)),
        slurm_reason_by=node.reason_by if node and reason else "",
        slurm_reason_at=node.reason_at if node and reason else None,
        tailnet=tailnet,
        heartbeat_age_s=round((cluster_view.now - heard).total_seconds(), 1) if heard else None,
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
            "gpus": views.gpu_load(report),
            "gpu_fault": report.gpu_fault,
        }
    )
