"""The lines above the tables. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from rich.text import Text

from meshd.api.schema import BudgetRow, GpuLoadRow, ProblemView, StatusView
from meshd.cli.render.shorten import merge_messages, merge_problems, shorten
from meshd.cli.render.status import frozen
from meshd.cli.render.terminal import age, clean_text, severity, usd
from meshd.cli.top.board import Board
from meshd.plaintext import counted

PROBLEMS_SHOWN = 2
"""Problems above the tables; a tab has all."""
_BUSY_PERCENT, _SOME_PERCENT = 60.0, 5.0
_LATE_S = 30.0
"""A tick takes a few seconds: one that is older than this is worth a word."""


def summary(board: Board, now: datetime) -> Text:
    """Two lines: the cluster and its GPUs; money and jobs. A freeze comes first, and what is silent last.

    Args:
        board: what is known.
        now: by this host's clock.
    """
    status = board.status
    if status is None:
        return clean_text(board.error or "asking meshd ...", "bold red" if board.error else "")
    lines = [clean_text(frozen(status.freeze), "bold red")] if status.freeze else []
    lines += [_cluster(board, status), _money(board, status)]
    if silent := ", ".join(_silent(board, status, now)):
        lines.append(clean_text(silent, "bold red"))
    return Text("\n").join(lines)


def _cluster(board: Board, status: StatusView) -> Text:
    ready, wanted = (sum(getattr(pool, name) for pool in status.pools) for name in ("ready_gpus", "target_gpus"))
    loads = [load for row in board.machines for load in row.gpu_load]
    gpus = f"{ready} of {wanted} wanted GPUs ready" if wanted else counted(ready, "GPU") + " ready"
    line = Text.assemble(
        clean_text(status.cluster, "bold"), clean_text(f"  meshd {status.version}  up {age(status.uptime_s)}  "),
        counted(len(board.machines), "machine"), "  ", gpus,
    )  # fmt: skip
    return line.append_text(Text.assemble("  busy ", busy(loads))) if loads else line


def _money(board: Board, status: StatusView) -> Text:
    running, pending = (sum(getattr(pool.queue, name) for pool in status.pools) for name in ("running", "pending"))
    line = Text.assemble((f"{usd(status.spend.usd_per_hour)}/h", "bold"))
    if board.cost is not None:
        line.append(f"  today {usd(board.cost.usd)}  month {usd(board.cost.month_usd)}")
        for row in sorted(board.cost.budget, key=lambda row: row.left_usd)[:1]:
            line.append_text(Text.assemble("  ", _limit(row)))
    return line.append(f"  jobs: {running} run, {pending} wait")


def _limit(row: BudgetRow) -> Text:
    """The limit with the least left."""
    whose = f"{row.pool}: " if row.pool else ""
    words = f"{whose}{usd(row.left_usd)} of {usd(row.limit_usd)} a {row.period} left"
    return clean_text(words, "bold red" if row.reached else "")


def _silent(board: Board, status: StatusView, now: datetime) -> Iterator[str]:
    if board.error:
        since = f" for {age((now - board.error_since).total_seconds())}" if board.error_since else ""
        yield f"meshd does not answer{since}: {board.error}"
    elif status.tick_age_s is not None and status.tick_age_s > _LATE_S:
        yield f"the last tick began {age(status.tick_age_s)} ago"
    for source in status.sources:
        if not source.ok:
            yield f"{source.name.removeprefix('provider:').replace('offers:', 'offers of ')} does not answer"
    if status.slurm.error:
        yield f"Slurm did not accept the last change: {status.slurm.error}"


def problems(status: StatusView | None, *, most: int | None = None) -> Text:
    """The problems, worst first, each on a line with its cure below it; with `most` that many, without cures."""
    if status is None:
        return Text()
    rows = merge_problems(status.problems)
    shown = rows if most is None else rows[:most]
    lines = [line for row in shown for line in _problem(row, status.at, cure=most is None)]
    if len(rows) > len(shown):
        lines.append(clean_text(f"{counted(len(rows) - len(shown), 'more problem')}: press 4"))
    if not rows and most is None:
        lines.append(clean_text("no problems", "green"))
    return Text("\n").join(lines)


def _problem(row: ProblemView, now: datetime, *, cure: bool) -> Iterator[Text]:
    about = f"{row.machine or row.pool}: " if row.machine or row.pool else ""
    since = f" (for {age((now - row.since).total_seconds())})" if row.since else ""
    words = f": {about}{shorten(merge_messages(row.text))}{since}"
    yield Text.assemble(severity(row.severity), clean_text(words))
    if cure and row.cure:
        yield clean_text(f"  do: {row.cure}")


def busy(loads: Sequence[GpuLoadRow] | Iterable[GpuLoadRow]) -> Text:
    """How busy GPUs are, on average; `-` when that is not known."""
    values = [load.utilization_percent for load in loads]
    if not values:
        return Text("-")
    mean = sum(values) / len(values)
    style = "green" if mean >= _BUSY_PERCENT else "yellow" if mean >= _SOME_PERCENT else ""
    return Text(f"{mean:.0f}%", style=style)
