"""What `status`, `nodes`, `events` and `doctor` show."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import rich.table
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from meshd.api.glance import frozen, node_jobs, where
from meshd.api.schema import (
    CheckRow,
    EventRow,
    GpuLoadRow,
    HeadNodeRow,
    NodeRow,
    PathRow,
    PoolView,
    ProblemView,
    SectionRow,
    SourceView,
    StatusView,
    WaitingRow,
)
from meshd.api.shorten import merge_messages, merge_problems, shorten
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text, phase, severity
from meshd.plaintext import age, counted, usd

_NODE_HEADERS = (
    "MACHINE", "SLOT", "KIND", "PHASE", "FOR", "WHERE", "TYPE", "GPUS", "LOAD", "ADDRESS", "PATH", "SLURM", "JOBS",
    "BEAT", "USD/H", "WHY",
)  # fmt: skip
WAITING_SHOWN = 10
"""The most jobs that wait in `status` without `--verbose`."""
_NODE_OPTIONAL = ("TYPE", "BEAT", "LOAD", "ADDRESS", "MACHINE", "WHERE", "FOR", "PATH", "GPUS", "KIND", "SLURM", "JOBS")


def status(view: StatusView, *, verbose: bool = False) -> list[RenderableType]:
    """The cluster, its cost, its pools and its problems; with `verbose` every problem by itself and in full."""
    tick = "no tick finished yet" if view.tick_age_s is None else f"last tick {age(view.tick_age_s)} ago"
    parts: list[RenderableType] = [
        *([clean_text(frozen(view.freeze), "bold red")] if view.freeze else []),
        clean_text(f"cluster {view.cluster}   meshd {view.version}   up {age(view.uptime_s)}   {tick}"),
        clean_text(f"spending {usd(view.spend.usd_per_hour)} per hour, {usd(view.spend.usd_so_far)} so far"),
    ]
    sources = [_source(source, view.at) for source in view.sources if source.age_s is not None or not source.ok]
    if sources:
        parts.append(clean_text(f"last answers: {', '.join(sources)}"))
    if view.slurm.error:
        parts.append(clean_text(f"Slurm did not accept the last change: {view.slurm.error}", "bold red"))
    parts.append("")
    if view.pools or view.head:
        parts.append(_pools(view.pools, view.head))
        parts += [clean_text(f"pool {pool.name}: {' '.join(pool.options)}") for pool in view.pools if pool.options]
    else:
        parts.append("no pools: add a [pools.NAME] table to the settings")
    if view.waiting:
        parts += ["", *waiting(view.waiting, view.at, verbose=verbose)]
    for problem in view.problems if verbose else merge_problems(view.problems):
        parts += _problem(problem, view.at, verbose=verbose)
    return parts


def _pools(pools: Sequence[PoolView], head: HeadNodeRow | None) -> Table:
    return Table(
        ("POOL", "PARTITION", "TARGET", "READY", "RUNNING", "PENDING", "USD/H", "MACHINES"),
        [
            (
                pool.name,
                pool.partition,
                f"{pool.target_gpus}",
                f"{pool.ready_gpus}" + (f" ({pool.unfit_gpus} unfit)" if pool.unfit_gpus else ""),
                f"{pool.queue.running}",
                f"{pool.queue.pending}",
                f"{pool.usd_per_hour:.2f}",
                _machines(pool),
            )
            for pool in pools
        ]
        + ([_head(head)] if head else []),
        optional=("PARTITION",),
    )


def _head(head: HeadNodeRow) -> tuple[str, ...]:
    """The head as a node, below the pools."""
    why = f": {head.slurm_reason}" if head.slurm_reason else ""
    return (
        head.name, ",".join(head.partitions), "-", f"{head.gpus if head.up and not head.drained else 0}",
        f"{head.queue.running}", f"{head.queue.pending}", "-", f"this host, {head.slurm_state}{why}",
    )  # fmt: skip


def waiting(rows: Sequence[WaitingRow], now: datetime, *, verbose: bool = False) -> list[RenderableType]:
    """The jobs that wait for machines; without `verbose` the first WAITING_SHOWN."""
    shown = rows if verbose else rows[:WAITING_SHOWN]
    table = Table(
        ("JOB", "USER", "POOL", "READY", "EXPECTED", "WAITS FOR"),
        [
            (
                row.job,
                row.user,
                row.pool,
                f"{row.ready}/{row.nodes}" if row.nodes else f"{row.ready}",
                f"in {age((row.until - now).total_seconds())}" if row.until and row.until > now else "-",
                row.text,
            )
            for row in shown
        ],
        optional=("USER", "READY"),
    )
    more = len(rows) - len(shown)
    return [table, *([clean_text(f"{counted(more, 'more job')} (--verbose shows all)")] if more else [])]


def _machines(pool: PoolView) -> str:
    """Its machines by phase, and how many of them are pods: `1 booting, 3 ready; 2 are pods`."""
    phases = ", ".join(f"{count} {name}" for name, count in sorted(pool.machines.items())) or "-"
    verb = "is a pod" if pool.pods == 1 else "are pods"
    return f"{phases}; {pool.pods} {verb}" if pool.pods else phases


def problem_line(problem: ProblemView, now: datetime, *, verbose: bool = False) -> Text:
    """A problem on one line, without its cure; with `verbose` in full."""
    about = f"{problem.machine or problem.pool}: " if problem.machine or problem.pool else ""
    since = f" (for {age((now - problem.since).total_seconds())})" if problem.since else ""
    words = problem.text if verbose else shorten(merge_messages(problem.text))
    return Text.assemble(severity(problem.severity), clean_text(f": {about}{words}{since}"))


def _problem(problem: ProblemView, now: datetime, *, verbose: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [Text("\n").append_text(problem_line(problem, now, verbose=verbose))]
    if problem.cure:
        parts.append(Padding(clean_text(f"do: {problem.cure}"), (0, 0, 0, 2), expand=False))
    return parts


def _source(source: SourceView, now: datetime) -> str:
    """When a source last answered; if it cannot be read, for how long."""
    name = source.name.removeprefix("provider:").replace("offers:", "offers of ")
    if source.ok:
        return f"{name} {age(source.age_s)} ago"
    silent = age((now - source.since).total_seconds()) if source.since else ""
    return f"{name} does not answer{f' for {silent}' if silent else ''}"


def nodes(rows: Sequence[NodeRow], now: datetime, head: HeadNodeRow | None = None) -> Table:
    """The machines, and the head where it is a node; `now` is the time of the answer."""
    return Table(
        _NODE_HEADERS,
        [
            (
                row.machine,
                row.slot,
                "pod" if row.pod else "vm",
                phase(row.phase),
                age((now - row.since).total_seconds()),
                where(row),
                row.instance_type or "-",
                f"{row.gpus} {row.gpu}".strip(),
                _load(row.gpu_load),
                row.address or "-",
                path(row.head_path) or _path_from_head(row.path) or "-",
                row.slurm_state or "-",
                node_jobs(row),
                age(row.heartbeat_age_s),
                f"{row.usd_per_hour:.2f}",
                _why(row, now),
            )
            for row in rows
        ]
        + ([_head_node(head)] if head else []),
        optional=_NODE_OPTIONAL,
    )


def _head_node(head: HeadNodeRow) -> tuple[str, ...]:
    return (
        "this host", head.name, "head", "-", "-", "-", "-", f"{head.gpus}", "-", head.address or "-", "-",
        head.slurm_state, ",".join(head.jobs) or "-", "-", "-", head.slurm_reason,
    )  # fmt: skip


def path(found: PathRow | None) -> str:
    """A measured path: `direct 1ms`, `derp:fra 48ms`; "" when it is not known."""
    if found is None:
        return ""
    rtt = f"{found.rtt_ms:.0f}ms" if found.rtt_ms >= 1 else "<1ms"
    return f"{found.kind}:{found.relay} {rtt}" if found.relay else f"{found.kind} {rtt}"


def _path_from_head(words: str) -> str:
    """How the head's tailscaled reaches a machine whose agent has not measured it: `direct`, `derp:fra`."""
    kind, _, code = words.partition(" ")
    return f"derp:{code}" if kind == "relay" else kind


def _load(gpus: Sequence[GpuLoadRow]) -> str:
    """The mean utilization of a machine's GPUs, and the memory in use on all of them: `97% 70G`."""
    if not gpus:
        return "-"
    busy = sum(gpu.utilization_percent for gpu in gpus) / len(gpus)
    return f"{busy:.0f}% {sum(gpu.memory_used_mib for gpu in gpus) / 1024:.0f}G"


def _why(row: NodeRow, now: datetime) -> Text | str:
    if row.failure:
        return clean_text(row.failure, "red")
    if row.phase == "configuring" and (doing := settings(row.settings, now)):
        return clean_text(doing)
    return clean_text(f"unfit: {row.unfit_text}", "yellow") if row.unfit else row.reason


def settings(rows: Sequence[SectionRow] | None, now: datetime) -> str:
    """The node settings that a machine does not have yet, and for how long: `setup: 40s (fetching the driver)`."""
    open_ = [row for row in rows or () if row.state != "applied"]
    return "; ".join(
        f"{row.name}{' failed' if row.state == 'failed' else ''}: {age((now - row.since).total_seconds())}"
        f"{f' ({row.text})' if row.text else ''}"
        for row in open_
    )


def event(row: EventRow) -> str:
    """An event on one line, in local time."""
    about = row.machine or row.pool
    return f"{row.at.astimezone():%Y-%m-%d %H:%M:%S}  {row.kind:<16}  {about + ': ' if about else ''}{row.text}"


def checks(rows: Sequence[CheckRow], now: datetime | None = None) -> list[RenderableType]:
    """Checks, each with its cure below it and the age of its answer; `now` is the time of the document."""
    grid = rich.table.Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        old_s = (now - row.at).total_seconds() if now and row.at else 0.0
        when = f" ({age(old_s)} ago)" if old_s >= 1 else ""
        grid.add_row(severity(f"{row.status:<4}"), clean_text(f"{row.name}: {row.text}{when}"))
        if row.cure and row.status != "ok":
            grid.add_row("", clean_text(f"do: {row.cure}"))
    return [grid] if rows else []
