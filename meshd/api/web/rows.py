"""PURE: tables of the page: columns, a row for each thing, and the part of many rows that one page shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from ClusterShell.NodeSet import NodeSet

from meshd.api.glance import mean_percent, memory, node_jobs, where, why
from meshd.api.schema import (
    EventRow,
    GpuLoadRow,
    HeadNodeRow,
    JobRow,
    NodeRow,
    PlanView,
    PoolView,
    ProblemView,
    WaitingRow,
)
from meshd.plaintext import age, counted

T = TypeVar("T")

ROWS_MAX: Final = 100
"""Rows of a page."""
TEXT_MAX: Final = 200
"""Of a cell. The page of a node or a job has the whole text."""
WORDS_MAX: Final = 100
PHASE_TONES: Final = {"ready": "good", "draining": "care", "terminating": "care", "lost": "bad"}
STATE_TONES: Final = {"RUNNING": "good", "PENDING": "care", "SUSPENDED": "care"}
SEVERITY_TONES: Final = {"error": "bad", "warning": "care", "info": "info"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell.

    Attributes:
        href: where it links to; "" for nowhere.
        tone: `good`, `care`, `bad`, `info`, or "".
    """

    text: str
    href: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row; `key` is unique in its table, and the same as long as the row is about the same thing."""

    key: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `number`: its cells are numbers; `wide`: narrow screens leave it out."""

    name: str
    number: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The first cell of a row is its header. `note` says what is left out."""

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    empty: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a visitor wants to see of a long table.

    Attributes:
        words: only rows that have all of these words somewhere, in any case.
        order: by which the rows are sorted, the greatest first; "" keeps their own order.
        page: from 1 on.
    """

    words: str = ""
    order: str = ""
    page: int = 1

    @staticmethod
    def of(query: Mapping[str, str], orders: Iterable[str]) -> Asked:
        """Read from a query string, leniently: what cannot be understood asks for nothing."""
        number = query.get("page", "")
        order = query.get("sort", "")
        return Asked(
            query.get("q", "")[:WORDS_MAX].strip(), order if order in orders else "",
            min(int(number), 10_000) if number.isascii() and number.isdigit() and 0 < len(number) < 6 else 1,
        )  # fmt: skip

    def href(self, page: int) -> str:
        """The address of another page of the same."""
        asked = {"q": self.words, "sort": self.order, "page": f"{page}" if page > 1 else ""}
        return "?" + urlencode({name: value for name, value in asked.items() if value})


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One page of many.

    Attributes:
        rows: those of this page.
        found: how many match in all, of `there`.
        page, pages: from 1 on.
    """

    rows: Sequence[T]
    found: int
    there: int
    page: int
    pages: int
    asked: Asked = field(default_factory=Asked)

    @property
    def previous(self) -> str:
        """The address of the page before; "" where there is none."""
        return self.asked.href(self.page - 1) if self.page > 1 else ""

    @property
    def following(self) -> str:
        """The address of the next page; "" where there is none."""
        return self.asked.href(self.page + 1) if self.page < self.pages else ""

    def says(self, noun: str) -> str:
        """What is shown, e.g. `101 to 200 of 1000 nodes`."""
        if not self.found:
            return f"none of {counted(self.there, noun)}" if self.asked.words else f"no {noun}s"
        first = (self.page - 1) * ROWS_MAX + 1
        of = f"{counted(self.found, noun)}" + (
            f" with {self.asked.words!r}, {self.there} in all" if self.asked.words else ""
        )
        return f"{first} to {first + len(self.rows) - 1} of {of}"


def part(
    all_: Sequence[T], asked: Asked, text: Callable[[T], str], orders: Mapping[str, Callable[[T], float]]
) -> Part[T]:
    """The page that a visitor asked for; the last one where there are not so many."""
    words = asked.words.lower().split()
    found = [one for one in all_ if all(word in text(one) for word in words)] if words else list(all_)
    if asked.order:
        found.sort(key=orders[asked.order], reverse=True)
    pages = max(1, -(-len(found) // ROWS_MAX))
    page = min(asked.page, pages)
    rows = found[(page - 1) * ROWS_MAX : page * ROWS_MAX]
    return Part(rows, len(found), len(all_), page, pages, asked)


def node_href(machine: str) -> str:
    """The address of a machine's page."""
    return f"/nodes/{quote(machine, safe='')}"


def job_href(job: str) -> str:
    """The address of a job's page."""
    return f"/jobs/{quote(job, safe='')}"


def busy(loads: Sequence[GpuLoadRow]) -> Cell:
    """How busy GPUs are."""
    mean = mean_percent(loads)
    return Cell("-") if mean is None else Cell(f"{mean:.0f}%")


# -- pools --------------------------------------------------------------------------------------------------------

POOLS: Final = (
    Column("Pool"), Column("Wanted", number=True), Column("Ready", number=True), Column("Running", number=True),
    Column("Waiting", number=True), Column("GPU use", number=True), Column("USD/h", number=True), Column("Machines"),
)  # fmt: skip


def pools(rows: Iterable[PoolView], nodes: Iterable[NodeRow], head: HeadNodeRow | None) -> Table:
    """The pools, then the head where it is a node."""
    loads: dict[str, list[GpuLoadRow]] = {}
    for node in nodes:
        loads.setdefault(node.pool, []).extend(node.gpu_load)
    lines = [_pool(row, loads.get(row.name, [])) for row in rows]
    if head is not None:
        reason = f": {head.slurm_reason}" if head.slurm_reason else ""
        ready = head.gpus if head.up and not head.drained else 0
        cells = (head.name, "-", f"{ready}", f"{head.queue.running}", f"{head.queue.pending}", "-", "-",
                 f"this host, {head.slurm_state}{reason}"[:TEXT_MAX])  # fmt: skip
        lines.append(Row(f"head {head.name}", tuple(map(Cell, cells))))
    return Table("pools", "Pools: GPUs that are wanted and ready, and jobs", POOLS, tuple(lines),
                 "no pools: an administrator adds tables [pools.NAME] to the settings")  # fmt: skip


def _pool(pool: PoolView, loads: list[GpuLoadRow]) -> Row:
    unfit = f" ({pool.unfit_gpus} unfit)" if pool.unfit_gpus else ""
    machines = ", ".join(f"{count} {name}" for name, count in sorted(pool.machines.items())) or "-"
    return Row(
        pool.name,
        (
            Cell(pool.name, href=f"/nodes?{urlencode({'q': pool.name})}"), Cell(f"{pool.wanted_gpus}"),
            Cell(f"{pool.ready_gpus}{unfit}", tone="care" if unfit else ""), Cell(f"{pool.queue.running}"),
            Cell(f"{pool.queue.pending}"), busy(loads), Cell(f"{pool.usd_per_hour:.2f}"), Cell(machines),
        ),
    )  # fmt: skip


# -- nodes --------------------------------------------------------------------------------------------------------

NODES: Final = (
    Column("Node"), Column("Phase"), Column("For", number=True), Column("GPU use", number=True),
    Column("GPU memory", number=True), Column("Jobs"), Column("USD/h", number=True), Column("Slurm", wide=True),
    Column("Where", wide=True), Column("Type", wide=True), Column("Why"),
)  # fmt: skip


def node_orders(now: datetime) -> Mapping[str, Callable[[NodeRow], float]]:
    """What nodes can be sorted by."""
    return {
        "gpu": lambda row: -1.0 if (mean := mean_percent(row.gpu_load)) is None else mean,
        "usd": lambda row: row.usd_per_hour,
        "age": lambda row: (now - row.since).total_seconds(),
    }


def node_text(row: NodeRow) -> str:
    """What is searched."""
    words = (row.machine, row.slot, row.pool, row.phase, row.slurm_state, where(row), row.instance_type, row.address,
             node_jobs(row), why(row))  # fmt: skip
    return "\n".join(words).lower()


def nodes(rows: Iterable[NodeRow], now: datetime, note: str = "") -> Table:
    """Machines, by pool and slot."""
    return Table("nodes", "Nodes", NODES, tuple(_node(row, now) for row in rows), "no nodes", note)


def _node(row: NodeRow, now: datetime) -> Row:
    return Row(
        row.machine,
        (
            Cell(row.slot, node_href(row.machine)), Cell(row.phase, tone=PHASE_TONES.get(row.phase, "info")),
            Cell(age((now - row.since).total_seconds())), busy(row.gpu_load), Cell(memory(row.gpu_load)),
            Cell(node_jobs(row)[:TEXT_MAX], job_href(row.jobs[0]) if len(row.jobs) == 1 else ""),
            Cell(f"{row.usd_per_hour:.2f}"), Cell(row.slurm_state or "-"), Cell(where(row)),
            Cell(f"{row.instance_type or '-'}{' pod' if row.pod else ''}"),
            Cell(why(row)[:TEXT_MAX], tone="bad" if row.failure else "care" if row.unfit else ""),
        ),
    )  # fmt: skip


# -- jobs ---------------------------------------------------------------------------------------------------------

JOBS: Final = (
    Column("Job"), Column("User"), Column("State"), Column("Time", number=True), Column("GPUs", number=True),
    Column("GPU use", number=True), Column("Nodes"), Column("Pool", wide=True), Column("Account", wide=True),
    Column("Why"),
)  # fmt: skip

Loads = Mapping[str, Sequence[GpuLoadRow]]
"""By slot."""


def job_loads(row: JobRow, loads: Loads) -> list[GpuLoadRow]:
    """Those of its nodes."""
    return [load for node in row.nodes for load in loads.get(node, ())]


def job_orders(loads: Loads) -> Mapping[str, Callable[[JobRow], float]]:
    """What jobs can be sorted by."""
    return {
        "gpu": lambda row: -1.0 if (mean := mean_percent(job_loads(row, loads))) is None else mean,
        "time": lambda row: row.run_s or 0.0,
        "gpus": lambda row: row.gpus,
    }


def job_text(row: JobRow) -> str:
    """What is searched."""
    words = (row.job, row.user, row.account, row.pool, row.partition, row.state, *row.nodes, row.reason)
    return "\n".join(words).lower()


def jobs(rows: Iterable[JobRow], loads: Loads, note: str = "") -> Table:
    """Jobs: those that run, then those that wait."""
    return Table("jobs", "Jobs", JOBS, tuple(_job(row, loads) for row in rows), "no jobs", note)


def folded(names: Sequence[str]) -> str:
    """Slots as Slurm writes them: `h100-[1-4]`."""
    return str(NodeSet.fromlist(names)) if names else "-"


def _job(row: JobRow, loads: Loads) -> Row:
    place = folded(row.nodes) if row.nodes else f"({row.node_count})" if row.node_count else "-"
    return Row(
        row.job,
        (
            Cell(row.job, job_href(row.job)), Cell(row.user), Cell(row.state, tone=STATE_TONES.get(row.state, "info")),
            Cell(age(row.run_s)), Cell(f"{row.gpus}" if row.gpus else "-"), busy(job_loads(row, loads)),
            Cell(place[:TEXT_MAX]), Cell(row.pool or row.partition), Cell(row.account or "-"),
            Cell(row.reason[:TEXT_MAX]),
        ),
    )  # fmt: skip


# -- the rest -----------------------------------------------------------------------------------------------------

WAITING: Final = (
    Column("Job"), Column("User", wide=True), Column("Pool"), Column("Ready", number=True), Column("Expected"),
    Column("Waits for"),
)  # fmt: skip


def waiting(rows: Sequence[WaitingRow], now: datetime, most: int) -> Table:
    """The jobs that wait for machines."""
    lines = tuple(
        Row(
            row.job,
            (
                Cell(row.job, job_href(row.job)), Cell(row.user), Cell(row.pool),
                Cell(f"{row.ready} of {row.nodes}" if row.nodes else f"{row.ready}"),
                Cell(f"in {age((row.until - now).total_seconds())}" if row.until and row.until > now else "-"),
                Cell(row.text[:TEXT_MAX]),
            ),
        )
        for row in rows[:most]
    )  # fmt: skip
    return Table(
        "waiting",
        "Jobs that wait for machines",
        WAITING,
        lines,
        "no job waits for machines",
        left_out(rows, most, "job"),
    )


STEPS: Final = (Column("Subject"), Column("Step"), Column("Why"))


def steps(plan: PlanView, most: int) -> Table:
    """What meshd does next."""
    lines = tuple(
        Row(
            f"{number} {row.action} {row.subject}",
            (Cell(row.subject), Cell(row.action.replace("_", " ")), Cell(row.reason[:TEXT_MAX])),
        )
        for number, row in enumerate(plan.steps[:most])
    )
    return Table(
        "steps", "What meshd does now", STEPS, lines, "meshd has nothing to do", left_out(plan.steps, most, "step")
    )


EVENTS: Final = (Column("Time (UTC)"), Column("Kind", wide=True), Column("About"), Column("What happened"))


def events(rows: Sequence[EventRow], note: str = "") -> Table:
    """Events, the newest first."""
    lines = tuple(
        Row(
            f"{row.id}",
            (
                Cell(f"{row.at:%Y-%m-%d %H:%M:%S}"), Cell(row.kind),
                Cell(row.machine or row.pool or "-", node_href(row.machine) if row.machine else ""),
                Cell(row.text),
            ),
        )
        for row in reversed(rows)
    )  # fmt: skip
    return Table("events", "Events, the newest first", EVENTS, lines, "no events", note)


PROBLEMS: Final = (Column("Severity"), Column("About"), Column("Problem"), Column("What to do"))


def problems(rows: Sequence[ProblemView], now: datetime, most: int) -> Table:
    """Problems, worst first."""
    lines = tuple(
        Row(
            f"{row.code} {row.machine} {row.pool} {number}",
            (
                Cell(row.severity, tone=SEVERITY_TONES.get(row.severity, "")),
                Cell(row.machine or row.pool or "-", node_href(row.machine) if row.machine else ""),
                Cell(f"{row.text}{_for(row, now)}"), Cell(row.cure or "-"),
            ),
        )
        for number, row in enumerate(rows[:most])
    )  # fmt: skip
    return Table(
        "problems", "Problems, the worst first", PROBLEMS, lines, "no problems", left_out(rows, most, "problem")
    )


def _for(row: ProblemView, now: datetime) -> str:
    return f" (for {age((now - row.since).total_seconds())})" if row.since else ""


def left_out(rows: Sequence[object], most: int, noun: str) -> str:
    """How many rows are not shown; "" for none."""
    more = len(rows) - most
    return f"{counted(more, f'more {noun}')} not shown" if more > 0 else ""
