"""The lines above the tables. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from rich.text import Text

from meshd.api.glance import frozen, mean_percent, silent, tightest
from meshd.api.schema import BudgetRow, GpuLoadRow, StatusView
from meshd.api.shorten import merge_problems
from meshd.cli.render.status import problem_line
from meshd.cli.render.terminal import clean_text
from meshd.cli.top.board import Board
from meshd.plaintext import age, counted, usd

PROBLEMS_SHOWN = 2
"""Problems above the tables; a tab has all."""
_APART = "  "
_WIDE = 98
_BUSY_PERCENT, _SOME_PERCENT = 60.0, 5.0


def summary(board: Board, now: datetime, width: int = 1000) -> Text:
    """Two lines: the cluster and its GPUs; money and jobs. A freeze comes first, and what is silent last.

    Args:
        board: what is known.
        now: by this host's clock.
        width: of the terminal. A narrow one gets more lines: none breaks within a figure.
    """
    status = board.status
    if status is None:
        return clean_text(board.error or "asking meshd ...", "bold red" if board.error else "")
    lines = [clean_text(frozen(status.freeze), "bold red")] if status.freeze else []
    lines += [*_flow(_cluster(board, status, width), width), *_flow(_money(board, status), width)]
    if not status.pools:
        lines.append(clean_text("no pool: add a table [pools.NAME] to the settings, then `meshctl reload`", "yellow"))
    if words := ", ".join(_silent(board, status, now)):
        lines.append(clean_text(words, "bold red"))
    return Text("\n").join(lines)


def _flow(parts: Iterable[Text], width: int) -> Iterator[Text]:
    """The parts side by side, on as many lines as they need."""
    line = Text()
    for part in parts:
        if line and line.cell_len + len(_APART) + part.cell_len > width:
            yield line
            line = Text()
        line = Text(_APART).join([line, part]) if line else part
    yield line


def _cluster(board: Board, status: StatusView, width: int) -> Iterator[Text]:
    ready, wanted = sum(pool.ready_gpus for pool in status.pools), sum(pool.wanted_gpus for pool in status.pools)
    loads = [load for row in board.machines for load in row.gpu_load]
    gpus = f"{ready} of {wanted} wanted GPUs ready" if wanted else counted(ready, "GPU") + " ready"
    yield clean_text(status.cluster, "bold")
    if width >= _WIDE:
        yield clean_text(f"meshd {status.version}")
    yield Text(f"up {age(status.uptime_s)}")
    yield Text(counted(len(board.machines), "machine"))
    yield Text(gpus)
    if loads:
        yield Text.assemble("busy ", busy(loads))


def _money(board: Board, status: StatusView) -> Iterator[Text]:
    running = sum(pool.queue.running for pool in status.pools)
    pending = sum(pool.queue.pending for pool in status.pools)
    yield Text(f"{usd(status.spend.usd_per_hour)}/h", "bold")
    if board.cost is not None:
        yield Text(f"today {usd(board.cost.usd)}")
        yield Text(f"month {usd(board.cost.month_usd)}")
        if (row := tightest(board.cost.budget)) is not None:
            yield _limit(row)
    yield Text(f"jobs: {running} run, {pending} wait")


def _limit(row: BudgetRow) -> Text:
    """The limit with the least left."""
    whose = f"{row.pool}: " if row.pool else ""
    words = f"{whose}{usd(row.left_usd)} of {usd(row.limit_usd)} a {row.period} left"
    return clean_text(words, "bold red" if row.reached else "")


def _silent(board: Board, status: StatusView, now: datetime) -> Iterator[str]:
    if board.error:
        since = f" for {age((now - board.error_since).total_seconds())}" if board.error_since else ""
        yield f"meshd does not answer{since}: {board.error}"
    yield from silent(status)


def problems(status: StatusView | None, *, most: int | None = None) -> Text:
    """The problems, worst first, each on a line with its cure below it; with `most` that many, without cures."""
    if status is None:
        return Text()
    rows = merge_problems(status.problems)
    shown = rows if most is None else rows[:most]
    lines: list[Text] = []
    for row in shown:
        lines.append(problem_line(row, status.at))
        if most is None and row.cure:
            lines.append(clean_text(f"  do: {row.cure}"))
    if len(rows) > len(shown):
        lines.append(clean_text(f"{counted(len(rows) - len(shown), 'more problem')}: press 4"))
    if not rows and most is None:
        lines.append(clean_text("no problems", "green"))
    return Text("\n").join(lines)


def busy(loads: Sequence[GpuLoadRow]) -> Text:
    """The same for people; `-` when that is not known."""
    mean = mean_percent(loads)
    if mean is None:
        return Text("-")
    style = "green" if mean >= _BUSY_PERCENT else "yellow" if mean >= _SOME_PERCENT else ""
    return Text(f"{mean:.0f}%", style=style)
