"""The story of a machine, a slot or a pool as text."""

from __future__ import annotations

from datetime import datetime

from rich.console import RenderableType
from rich.text import Text

from meshd.api.schema import AttemptRow, ExplainView, HealthView
from meshd.cli.render import age, event, phase, text
from meshd.cli.render_offers import alternatives
from meshd.cli.sheet import Sheet
from meshd.cli.wording import TEXT_MAX, WORDS_MAX, once, same_rungs, short
from meshd.model.words import counted

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
_RUNG_HEADERS = ("AT", "MACHINE", "OFFER", "USD/H", "OUTCOME", "WORDS")
_WORKS = frozenset({"ready", "draining", "terminating", "lost", "gone"})


def explain(view: ExplainView, *, full: bool = False) -> list[RenderableType]:
    """What it does and why, what was tried, what comes next, what happened; with `full` in all its words."""
    parts: list[RenderableType] = [_head(view), text(view.why if full else short(once(view.why), 2 * TEXT_MAX))]
    if view.health is not None:
        parts += ["", text("health", "bold"), *_health(view.health, view.at)]
    if view.constraints:
        wanted = counted(view.target_gpus, view.unit) if view.target_gpus else "nothing"
        parts += ["", text(f"pool {view.pool}: {wanted} wanted", "bold")]
        parts += [text(f"  {line}") for line in view.constraints]
    if view.rungs:
        parts += ["", text("offers tried", "bold")]
        parts.append(
            Sheet(
                _RUNG_HEADERS,
                [_rung(row, full=full) for row in (view.rungs if full else same_rungs(view.rungs))],
                spare=("MACHINE", "USD/H", "AT"),
            )
        )
    if view.next_rungs and view.phase not in _WORKS:
        parts += ["", text("offers that come next", "bold"), alternatives(view.next_rungs, full=full)]
    if view.events:
        parts += ["", text("events", "bold"), *(text(event(row) if full else short(event(row))) for row in view.events)]
    return parts


def _health(health: HealthView, now: datetime) -> list[RenderableType]:
    """What Slurm, the agent and the tailnet say, what follows from it, and the end of slurmd's log."""
    parts: list[RenderableType] = []
    if health.unfit:
        since = f", for {age((now - health.since).total_seconds())}" if health.since else ""
        parts.append(text(f"  not fit ({health.unfit}{since}): {health.text}", "yellow"))
    else:
        parts.append(text("  fit, as far as is known", "green"))
    said = f" by {health.slurm_reason_by}" if health.slurm_reason_by else ""
    rows = [
        ("next", health.next),
        ("do", health.cure),
        ("slurm", health.slurm_state + (f": {health.slurm_reason}{said}" if health.slurm_reason else "")),
        ("tailnet", health.tailnet),
        ("agent", _agent(health)),
        ("gpus", _gpus(health)),
        (
            "system",
            ", ".join(
                part
                for part in (
                    health.os,
                    health.arch,
                    health.slurmd_version and f"slurmd {health.slurmd_version}",
                    health.tailscale_version and f"tailscale {health.tailscale_version}",
                )
                if part
            ),
        ),
        ("ssh host key", health.ssh_host_key),
    ]
    parts += [text(f"  {name}: {value}") for name, value in rows if value]
    if health.log:
        parts.append(text("  slurmd's log:"))
        parts += [text(f"    {line}") for line in health.log]
    return parts


def _agent(health: HealthView) -> str:
    heard = "has not spoken yet" if health.heartbeat_age_s is None else f"spoke {age(health.heartbeat_age_s)} ago"
    if health.reported_at is None:
        return heard
    daemons = [f"{name} {'runs' if ok else 'DOES NOT RUN'}" for name, ok in
               (("slurmd", health.slurmd_alive), ("munged", health.munged_alive))]  # fmt: skip
    return (
        f"{heard}; {', '.join(daemons)}; {counted(health.jobs_seen, 'job')} at work; load {health.load1:.1f}, up "
        f"{age(health.uptime_s)}, agent {health.agent_version or 'of an unknown version'}"
    )


def _gpus(health: HealthView) -> str:
    if health.gpu_fault:
        return f"FAULT: {health.gpu_fault}"
    return ", ".join(f"{g.index}: {g.utilization_percent}% {g.memory_used_mib} MiB" for g in health.gpus)


def _head(view: ExplainView) -> Text:
    if not view.slot:
        return text(f"pool {view.subject}", "bold")
    if not view.phase:
        return text(f"slot {view.slot} of pool {view.pool}: no machine", "bold")
    return Text.assemble(text(f"{view.machine} (slot {view.slot}, pool {view.pool}): ", "bold"), phase(view.phase))


def _rung(row: AttemptRow, *, full: bool) -> tuple[Text | str, ...]:
    word, style = _OUTCOMES.get(row.outcome, (row.outcome, ""))
    return (
        f"{row.at.astimezone():%m-%d %H:%M:%S}",
        row.machine,
        row.offer,
        f"{row.usd_per_hour:.2f}",
        text(word, style),
        row.words if full else short(row.words, WORDS_MAX),
    )
