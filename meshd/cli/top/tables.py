"""The tables of the live view: their columns, and a line for each pool, node and job. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from ClusterShell.NodeSet import NodeSet
from rich.text import Text

from meshd.api.glance import mean_percent, memory, node_jobs, where, why
from meshd.api.schema import GpuLoadRow, HeadNodeRow, JobRow, NodeRow, PoolView
from meshd.cli.render.terminal import clean_text, phase
from meshd.cli.top.board import Board
from meshd.cli.top.summary import busy
from meshd.plaintext import age

TEXT_MAX = 200
"""The longest text in a cell. What is cut off can be read in the node's view."""
_STATES = {"RUNNING": "green", "CONFIGURING": "cyan", "PENDING": "yellow", "SUSPENDED": "yellow"}

Cells: TypeAlias = tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        from_width: it is shown on terminals from this width on.
    """

    name: str
    from_width: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table.

    Attributes:
        key: unique in its table, and the same as long as the line is about the same thing.
        cells: one for each column of the table, whether it is shown or not.
        order: what the table can be sorted by, by the name of the order.
    """

    key: str
    cells: Cells
    order: Mapping[str, float | str | tuple[str, int]]

    def has(self, words: str) -> bool:
        """Whether each of these words is somewhere in it, in any case."""
        text = "\n".join(cell.plain for cell in self.cells).lower()
        return all(word in text for word in words.lower().split())


def select(lines: Iterable[Line], *, words: str = "", order: str = "") -> list[Line]:
    """The lines to show.

    Args:
        lines: all, in their own order.
        words: only lines that have all of them.
        order: sort by this, the greatest first; "" keeps their own order.
    """
    chosen = [line for line in lines if line.has(words)]
    if order:
        chosen.sort(key=lambda line: line.order[order], reverse=True)
    return chosen


POOLS = (
    Column("POOL"), Column("WANTED"), Column("READY"), Column("RUN"), Column("WAIT"), Column("GPU"), Column("USD/H"),
    Column("MACHINES"),
)  # fmt: skip
NODES = (
    Column("NODE"), Column("PHASE"), Column("FOR"), Column("GPU"), Column("MEMORY"), Column("JOBS"), Column("USD/H"),
    Column("SLURM", 100), Column("WHERE", 120), Column("TYPE", 150), Column("ADDRESS", 180), Column("BEAT", 190),
    Column("WHY"),
)  # fmt: skip
NODE_ORDERS = ("", "gpu", "usd", "age")
"""By slot; by how busy its GPUs are; by price; by how long it has been in its phase."""
JOBS = (
    Column("JOB"), Column("USER"), Column("STATE"), Column("TIME"), Column("GPUS"), Column("GPU"), Column("NODES"),
    Column("POOL", 100), Column("ACCOUNT", 140), Column("WHY"),
)  # fmt: skip
JOB_ORDERS = ("", "gpu", "time", "gpus")


def pools(board: Board) -> list[Line]:
    """The pools, then the head where it is a node."""
    if board.status is None:
        return []
    loads: dict[str, list[GpuLoadRow]] = {}
    for row in board.machines:
        loads.setdefault(row.pool, []).extend(row.gpu_load)
    lines = [_pool(pool, loads.get(pool.name, [])) for pool in board.status.pools]
    return [*lines, *([_head_pool(board.status.head)] if board.status.head else [])]


def _pool(pool: PoolView, loads: list[GpuLoadRow]) -> Line:
    ready = f"{pool.ready_gpus}" + (f" ({pool.unfit_gpus} unfit)" if pool.unfit_gpus else "")
    return Line(
        pool.name,
        _cells(
            pool.name, f"{pool.wanted_gpus}", Text(ready, "yellow" if pool.unfit_gpus else ""),
            f"{pool.queue.running}", f"{pool.queue.pending}", busy(loads), f"{pool.usd_per_hour:.2f}",
            ", ".join(f"{count} {name}" for name, count in sorted(pool.machines.items())) or "-",
        ),
        {},
    )  # fmt: skip


def _head_pool(head: HeadNodeRow) -> Line:
    reason = f": {head.slurm_reason}" if head.slurm_reason else ""
    ready = head.gpus if head.up and not head.drained else 0
    return Line(
        f"head {head.name}",
        _cells(head.name, "-", f"{ready}", f"{head.queue.running}", f"{head.queue.pending}", "-", "-",
               f"this host, {head.slurm_state}{reason}"),
        {},
    )  # fmt: skip


def nodes(board: Board) -> list[Line]:
    """The machines, by pool and slot."""
    return [_node(row, board.nodes.at) for row in board.machines] if board.nodes else []


def _node(row: NodeRow, now: datetime) -> Line:
    for_s = (now - row.since).total_seconds()
    words = why(row)
    return Line(
        row.machine,
        _cells(
            row.slot, phase(row.phase), age(for_s), busy(row.gpu_load), memory(row.gpu_load), node_jobs(row),
            f"{row.usd_per_hour:.2f}", row.slurm_state or "-",
            where(row),
            f"{row.instance_type or '-'}{' pod' if row.pod else ''}", row.address or "-", age(row.heartbeat_age_s),
            clean_text(words[:TEXT_MAX], "bold red" if row.failure else "yellow" if row.unfit else ""),
        ),
        {"gpu": _by_load(row.gpu_load), "usd": row.usd_per_hour, "age": for_s},
    )  # fmt: skip


def jobs(board: Board) -> list[Line]:
    """The jobs that run, then those that wait, each by id."""
    if board.jobs is None:
        return []
    loads = {row.slot: row.gpu_load for row in board.machines}
    return [_job(row, [load for node in row.nodes for load in loads.get(node, [])]) for row in board.jobs.jobs]


def _job(row: JobRow, loads: list[GpuLoadRow]) -> Line:
    place = str(NodeSet.fromlist(row.nodes)) if row.nodes else f"({row.node_count})" if row.node_count else "-"
    return Line(
        row.job,
        _cells(
            row.job, row.user, clean_text(row.state, _STATES.get(row.state, "")), age(row.run_s),
            f"{row.gpus}" if row.gpus else "-", busy(loads), place, row.pool or row.partition, row.account or "-",
            row.reason[:TEXT_MAX],
        ),
        {"gpu": _by_load(loads), "time": row.run_s or 0.0, "gpus": row.gpus},
    )  # fmt: skip


def _by_load(loads: list[GpuLoadRow]) -> float:
    """How busy GPUs are, to sort by: unknown comes last."""
    mean = mean_percent(loads)
    return -1.0 if mean is None else mean


def _cells(*values: str | Text) -> Cells:
    return tuple(value if isinstance(value, Text) else clean_text(value[:TEXT_MAX]) for value in values)
