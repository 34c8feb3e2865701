"""Documents as text: tables for people. Everything that comes from outside is cleaned first."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshd.api.schema import (
    CheckRow,
    EventRow,
    GpuLoadRow,
    MachineAnswer,
    NodeRow,
    PlanView,
    SourceView,
    StatusView,
    VersionView,
    WaitingFor,
)
from meshd.cli.console import console
from meshd.cli.sheet import Sheet
from meshd.cli.wording import once, same_problems, short
from meshd.runtime.terminal import clean

_PIPE_WIDTH = 10_000
_NODE_HEADERS = (
    "MACHINE", "SLOT", "PHASE", "FOR", "WHERE", "TYPE", "GPUS", "LOAD", "ADDRESS", "PATH", "SLURM", "JOBS", "BEAT",
    "USD/H", "WHY",
)  # fmt: skip
_NODE_SPARE = ("PATH", "TYPE", "BEAT", "LOAD", "ADDRESS", "MACHINE", "WHERE", "FOR", "GPUS", "SLURM", "JOBS")
_PHASE_STYLES = {"ready": "green", "draining": "yellow", "terminating": "yellow", "lost": "bold red"}
_SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "fail": "bold red", "warn": "yellow", "ok": "green"}


def show(*parts: RenderableType, err: bool = False, whole: bool = False) -> None:
    """Print on a terminal in its width and colours; into a pipe as plain lines that are never cut.

    Args:
        parts: what to print, one below the other.
        err: on stderr.
        whole: leave no column of a table out: lines may be longer than the terminal is wide.
    """
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        out = console(stream)
        if whole:
            out.width = max(out.width, _PIPE_WIDTH)
        out.print(*parts, sep="\n", soft_wrap=whole)
        return
    stream.write(plain(*parts))


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Say on stderr, where it is a terminal, what is waited for; gone once it is there."""
    if not sys.stderr.isatty():
        yield
        return
    with console(sys.stderr).status(what):
        yield


def plain(*parts: RenderableType) -> str:
    """Text without colours, line breaks of its own, or blanks at line ends."""
    buffer = io.StringIO()
    Console(file=buffer, width=_PIPE_WIDTH, color_system=None, force_terminal=False).print(*parts, sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def text(value: object, style: str = "") -> Text:
    """Foreign text, cleaned, never read as markup."""
    return Text(clean(str(value)), style=style)


def usd(amount: float) -> str:
    """Money."""
    return f"${amount:,.2f}"


def age(seconds: float | None) -> str:
    """A span of time in at most two units: 7s, 3m20s, 2h05m, 4d3h."""
    if seconds is None:
        return "-"
    whole = max(int(seconds), 0)
    minutes, s = divmod(whole, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h}h"
    if hours:
        return f"{hours}h{m:02d}m"
    return f"{minutes}m{s:02d}s" if minutes else f"{s}s"


def phase(name: str) -> Text:
    """A phase in its colour."""
    return text(name, _PHASE_STYLES.get(name, "cyan"))


def severity(name: str) -> Text:
    """A severity or a check's status in its colour."""
    return text(name, _SEVERITY_STYLES.get(name, ""))


def status(view: StatusView, *, full: bool = False) -> list[RenderableType]:
    """The whole; with `full` every problem by itself and in all its words."""
    tick = "no tick finished yet" if view.tick_age_s is None else f"last look {age(view.tick_age_s)} ago"
    parts: list[RenderableType] = [
        text(f"cluster {view.cluster}   meshd {view.version}   up {age(view.uptime_s)}   {tick}"),
        text(f"spending {usd(view.spend.usd_per_hour)} per hour, {usd(view.spend.usd_so_far)} so far"),
    ]
    heard = [_heard(source, view.at) for source in view.sources if source.age_s is not None or not source.ok]
    if heard:
        parts.append(text(f"last heard: {', '.join(heard)}"))
    if view.slurm.error:
        parts.append(text(f"Slurm has not taken the last change: {view.slurm.error}", "bold red"))
    parts.append("")
    if view.pools:
        parts.append(
            Sheet(
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
                        ", ".join(f"{count} {name}" for name, count in sorted(pool.machines.items())) or "-",
                    )
                    for pool in view.pools
                ],
                spare=("PARTITION",),
            )
        )
        parts += [text(f"pool {pool.name}: {' '.join(pool.options)}") for pool in view.pools if pool.options]
    else:
        parts.append("no pools: add a [pools.NAME] table to the settings")
    for problem in view.problems if full else same_problems(view.problems):
        about = f"{problem.machine or problem.pool}: " if problem.machine or problem.pool else ""
        since = f" (for {age((view.at - problem.since).total_seconds())})" if problem.since else ""
        words = problem.text if full else short(once(problem.text))
        parts.append(Text.assemble("\n", severity(problem.severity), text(f": {about}{words}{since}")))
        if problem.cure:
            parts.append(Padding(text(f"do: {problem.cure}"), (0, 0, 0, 2), expand=False))
    return parts


def _heard(source: SourceView, now: datetime) -> str:
    """A source and how long ago it was read; for one that cannot be read, for how long."""
    name = source.name.removeprefix("provider:").replace("offers:", "offers of ")
    if source.ok:
        return f"{name} {age(source.age_s)} ago"
    silent = age((now - source.since).total_seconds()) if source.since else ""
    return f"{name} does not answer{f' for {silent}' if silent else ''}"


def nodes(rows: Sequence[NodeRow], now: datetime) -> Sheet:
    """Machines; `now` is the time of the answer."""
    return Sheet(
        _NODE_HEADERS,
        [
            (
                row.machine,
                row.slot,
                phase(row.phase),
                age((now - row.since).total_seconds()),
                f"{row.provider}/{row.region}" if row.region else row.provider,
                row.instance_type or "-",
                f"{row.gpus} {row.gpu}".strip(),
                load(row.gpu_load),
                row.address or "-",
                row.path or "-",
                row.slurm_state or "-",
                ",".join(row.jobs) or "-",
                age(row.heartbeat_age_s),
                f"{row.usd_per_hour:.2f}",
                _why(row),
            )
            for row in rows
        ],
        spare=_NODE_SPARE,
    )


def load(gpus: Sequence[GpuLoadRow]) -> str:
    """How much its GPUs work on average, and how much of their memory is used: `97% 70G`."""
    if not gpus:
        return "-"
    busy = sum(gpu.utilization_percent for gpu in gpus) / len(gpus)
    return f"{busy:.0f}% {sum(gpu.memory_used_mib for gpu in gpus) / 1024:.0f}G"


def _why(row: NodeRow) -> Text | str:
    if row.failure:
        return text(row.failure, "red")
    return text(f"unfit: {row.unfit_text}", "yellow") if row.unfit else row.reason


def price(view: PlanView) -> Text:
    """What it costs before and after."""
    before, after = view.usd_per_hour_before, view.usd_per_hour_after
    change = after - before
    sign = "+" if change >= 0 else "-"
    return text(f"price: {usd(before)} -> {usd(after)} per hour ({sign}{usd(abs(change))})")


def waiting(rows: Sequence[WaitingFor]) -> list[RenderableType]:
    """Who is given back only after whose jobs."""
    return [text(f"{row.slot} waits for job {', '.join(row.jobs)} to end") for row in rows]


def machines(answers: Sequence[MachineAnswer]) -> Sheet:
    """Answers about single machines."""
    return Sheet(
        ("MACHINE", "SLOT", "PHASE", "JOBS", "WHAT"),
        [(a.machine, a.slot, phase(a.phase), ",".join(a.jobs) or "-", a.text) for a in answers],
    )


def checks(rows: Sequence[CheckRow], now: datetime | None = None) -> list[RenderableType]:
    """Checks, each with its cure below and the age of its answer; `now` is the time of the answer."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        old_s = (now - row.at).total_seconds() if now and row.at else 0.0
        when = f" ({age(old_s)} ago)" if old_s >= 1 else ""
        grid.add_row(severity(f"{row.status:<4}"), text(f"{row.name}: {row.text}{when}"))
        if row.cure and row.status != "ok":
            grid.add_row("", text(f"do: {row.cure}"))
    return [grid] if rows else []


def event(row: EventRow) -> str:
    """One line."""
    about = row.machine or row.pool
    return f"{row.at.astimezone():%Y-%m-%d %H:%M:%S}  {row.kind:<16}  {about + ': ' if about else ''}{row.text}"


def version(meshctl: str, view: VersionView) -> Sheet:
    """What runs."""
    rows = [("meshctl", meshctl), ("meshd", view.meshd), ("cluster", view.cluster), ("python", view.python)]
    rows += [("slurm", view.slurm), ("tailscale", view.tailscale)]
    rows += [(f"provider {name}", found) for name, found in sorted(view.providers.items())]
    return Sheet(("WHAT", "VERSION"), [(name, found or "not known") for name, found in rows])
