"""What `explain` shows of a machine, a slot, a pool or a job."""

from __future__ import annotations

from datetime import datetime

from rich.console import RenderableType
from rich.text import Text

from meshd.api.glance import frozen
from meshd.api.schema import AttemptRow, ExplainView, HealthView, PeerPathsView
from meshd.api.shorten import MESSAGE_MAX, TEXT_MAX, merge_attempts, merge_messages, shorten
from meshd.cli.render.offers import alternatives
from meshd.cli.render.status import event, path, settings, waiting
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text, phase
from meshd.plaintext import age, counted

_OUTCOMES = {
    "rented": ("rented", "green"),
    "adopted": ("found again", "green"),
    "no_capacity": ("no capacity", "yellow"),
    "quota": ("over the quota", "yellow"),
    "refused": ("refused", "red"),
    "unclear": ("unclear", "yellow"),
    "failed": ("given up", "red"),
    "skipped": ("not asked", ""),
    "waiting": ("waits", "cyan"),
}
_ATTEMPT_HEADERS = ("AT", "MACHINE", "OFFER", "USD/H", "OUTCOME", "MESSAGE")
_SEARCH_ENDED = frozenset({"ready", "draining", "terminating", "lost", "gone"})


def explain(view: ExplainView, *, verbose: bool = False) -> list[RenderableType]:
    """What it does and why, the offers tried, the next offers, the events; with `verbose` all messages in full."""
    parts: list[RenderableType] = [
        *([clean_text(frozen(view.freeze), "bold red")] if view.freeze else []),
        _headline(view),
        clean_text(view.why if verbose else shorten(merge_messages(view.why), 2 * TEXT_MAX)),
    ]
    if view.waiting and not view.job:
        parts += [
            "",
            clean_text("jobs that wait for its machines", "bold"),
            *waiting(view.waiting, view.at, verbose=verbose),
        ]
    if view.health is not None:
        parts += ["", clean_text("health", "bold"), *_health(view.health, view.at)]
    if view.constraints:
        wanted = counted(view.target_gpus, view.unit) if view.target_gpus else "none"
        parts += ["", clean_text(f"pool {view.pool}: target {wanted}", "bold")]
        parts += [clean_text(f"  {line}") for line in view.constraints]
    if view.rungs:
        parts += ["", clean_text("offers tried", "bold")]
        parts.append(
            Table(
                _ATTEMPT_HEADERS,
                [_attempt(row, verbose=verbose) for row in (view.rungs if verbose else merge_attempts(view.rungs))],
                optional=("MACHINE", "USD/H", "AT"),
            )
        )
    if view.next_rungs and view.phase not in _SEARCH_ENDED:
        parts += ["", clean_text("next offers", "bold"), alternatives(view.next_rungs, verbose=verbose)]
    if view.events:
        parts += [
            "",
            clean_text("events", "bold"),
            *(clean_text(event(row) if verbose else shorten(event(row))) for row in view.events),
        ]
    return parts


def _health(health: HealthView, now: datetime) -> list[RenderableType]:
    """What Slurm, the agent and the tailnet report, what meshd does about it, and the end of slurmd's log."""
    parts: list[RenderableType] = []
    if health.unfit:
        since = f", for {age((now - health.since).total_seconds())}" if health.since else ""
        parts.append(clean_text(f"  not fit ({health.unfit}{since}): {health.text}", "yellow"))
    else:
        parts.append(clean_text("  fit, as far as meshd knows", "green"))
    said = f" by {health.slurm_reason_by}" if health.slurm_reason_by else ""
    rows = [
        ("next", health.next),
        ("do", health.cure),
        ("slurm", health.slurm_state + (f": {health.slurm_reason}{said}" if health.slurm_reason else "")),
        ("tailnet", health.tailnet),
        ("path to the head", _head_path(health)),
        ("paths to its pool", _peer_paths(health.peer_paths)),
        ("agent", _agent(health)),
        ("gpus", _gpus(health)),
        ("node settings", settings(health.settings, now)),
        ("limits", health.limits),
        ("system", _system(health)),
        ("ssh host key", health.ssh_host_key),
    ]
    parts += [clean_text(f"  {name}: {value}") for name, value in rows if value]
    if health.log:
        parts.append(clean_text("  slurmd's log:"))
        parts += [clean_text(f"    {line}") for line in health.log]
    return parts


def _agent(health: HealthView) -> str:
    heard = (
        "no heartbeat yet" if health.heartbeat_age_s is None else f"last heartbeat {age(health.heartbeat_age_s)} ago"
    )
    if health.reported_at is None:
        return heard
    daemons = [f"{name} {'runs' if ok else 'DOES NOT RUN'}" for name, ok in
               (("slurmd", health.slurmd_alive), ("munged", health.munged_alive))]  # fmt: skip
    return (
        f"{heard}; {', '.join(daemons)}; {counted(health.jobs_seen, 'job')} running; load {health.load1:.1f}, up "
        f"{age(health.uptime_s)}, agent {health.agent_version or 'of an unknown version'}"
    )


def _head_path(health: HealthView) -> str:
    found = health.head_path
    if found is None:
        return ""
    estimate = f"throughput {found.throughput_estimate}, an estimate"
    return f"{path(found)} ({estimate}; measured {age(found.age_s)} ago)"


def _peer_paths(peers: PeerPathsView | None) -> str:
    """How many nodes of a sample are reached directly, and some of the others."""
    measured = peers.direct + peers.relayed + peers.silent if peers else 0
    if peers is None or not measured:
        return ""
    median = f", median {peers.rtt_ms:.1f}ms" if peers.rtt_ms is not None else ""
    text = f"{peers.direct} of {measured} measured are direct, {peers.relayed} relayed, {peers.silent} silent{median}"
    return f"{text}; not direct: {', '.join(peers.not_direct)}" if peers.not_direct else text


def _system(health: HealthView) -> str:
    versions = {"slurmd": health.slurmd_version, "tailscale": health.tailscale_version}
    parts = [health.os, health.arch, *(f"{name} {version}" for name, version in versions.items() if version)]
    return ", ".join(part for part in parts if part)


def _gpus(health: HealthView) -> str:
    if health.gpu_fault:
        return f"FAULT: {health.gpu_fault}"
    return ", ".join(f"{g.index}: {g.utilization_percent}% {g.memory_used_mib} MiB" for g in health.gpus)


def _headline(view: ExplainView) -> Text:
    if view.job:
        whose = f" of {view.waiting[0].user}" if view.waiting else ""
        return clean_text(f"job {view.job}{whose}" + (f" (pool {view.pool})" if view.pool else ""), "bold")
    if not view.slot:
        return clean_text(f"pool {view.subject}", "bold")
    if not view.phase:
        return clean_text(f"slot {view.slot} of pool {view.pool}: no machine", "bold")
    return Text.assemble(
        clean_text(f"{view.machine} (slot {view.slot}, pool {view.pool}): ", "bold"), phase(view.phase)
    )


def _attempt(row: AttemptRow, *, verbose: bool) -> tuple[Text | str, ...]:
    word, style = _OUTCOMES.get(row.outcome, (row.outcome, ""))
    return (
        f"{row.at.astimezone():%m-%d %H:%M:%S}",
        row.machine,
        row.offer,
        f"{row.usd_per_hour:.2f}",
        clean_text(word, style),
        row.words if verbose else shorten(row.words, MESSAGE_MAX),
    )
