"""PURE: reads a dump of Slurm's accounting, as `sacct -P` prints it.

The first line names the columns, in any order. Format of the fields: sacct(1), "Job Accounting Fields".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from meshd.simulate.load import DAYS_MAX, JOBS_MAX, JobSpec, numbered

COLUMNS = "JobID,User,Partition,Submit,Start,State,ElapsedRaw,NNodes,ReqTRES"
COMMAND = f"TZ=UTC sacct -a -X -P --noconvert -S 2026-11-01 -E 2026-11-08 -o {COLUMNS}"
"""In UTC, since no hour comes twice there when summer time ends."""
NEEDED = ("JobID", "Partition", "Submit", "ElapsedRaw", "NNodes")
LINE_MAX = 64 * 1024
FAULTS_MAX = 10
_UNKNOWN = frozenset({"", "Unknown", "None", "N/A", "NONE"})
_ID = re.compile(r"\d{1,10}(_(\d{1,10}|\[.*\]))?(\+\d{1,5})?(\.[A-Za-z0-9_+]{1,40})?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be read; it is counted from 1."""

    line: int
    text: str


class BadDump(ValueError):
    """The dump cannot be read. Its faults name the lines."""

    def __init__(self, faults: Iterable[BadLine]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"line {fault.line}: {fault.text}" for fault in self.faults))


@dataclass
class Dump:
    """What a dump says.

    Attributes:
        jobs: those that ran, from the first submit on.
        left_out: by reason, how many lines are no job of the simulation.
    """

    jobs: list[JobSpec] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def read(lines: Iterable[str], pool_of: Mapping[str, str]) -> Dump:
    """The jobs of a dump.

    Args:
        lines: of the file, the header first.
        pool_of: by partition, its pool.

    Raises:
        BadDump: with the first faults.
    """
    found, rows, faults = Dump(), [], list[BadLine]()
    numbers = enumerate(lines, 1)
    columns = _header(next(numbers, (1, ""))[1])
    for number, line in numbers:
        if not line.strip():
            continue
        try:
            row = _row(line, columns, found.left_out, pool_of)
        except ValueError as error:
            faults.append(BadLine(number, str(error)))
            if len(faults) >= FAULTS_MAX:
                break
            continue
        if row is not None:
            rows.append(row)
            if len(rows) > JOBS_MAX:
                raise BadDump([BadLine(number, f"more than {JOBS_MAX} jobs ran: take a shorter time with -S and -E")])
    if faults:
        raise BadDump(faults)
    if rows:
        first_s = min(row.at_s for row in rows)
        if max(row.at_s for row in rows) - first_s > DAYS_MAX * 86400:
            raise BadDump([BadLine(1, f"it spans more than {DAYS_MAX} days: take a shorter time with -S and -E")])
        found.jobs = numbered(_moved(rows, first_s))
    return found


def _moved(rows: Iterable[JobSpec], first_s: float) -> Iterator[JobSpec]:
    for row in rows:
        yield JobSpec(row.id, row.user, row.pool, row.at_s - first_s, row.nodes, row.run_s, row.cpus, row.gpus)


def _header(line: str) -> list[str]:
    if not line.strip():
        raise BadDump([BadLine(1, f"there is nothing in it: make the dump with `{COMMAND}`")])
    columns = [name.strip() for name in line.lstrip("\ufeff").rstrip("\r\n").split("|")]
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise BadDump([BadLine(1, f"there is no column {', '.join(missing)}: make the dump with `{COMMAND}`")])
    return columns


def _row(line: str, columns: list[str], left_out: Counter[str], pool_of: Mapping[str, str]) -> JobSpec | None:
    """A job; None for a line that is none, which is counted. Raises ValueError."""
    if len(line) > LINE_MAX:
        raise ValueError(f"is longer than {LINE_MAX} characters")
    values = line.rstrip("\r\n").split("|")
    if len(values) == len(columns) + 1 and not values[-1]:
        values.pop()  # sacct -p ends each line with one more
    if len(values) != len(columns):
        raise ValueError(f"has {len(values)} columns, and the header {len(columns)}")
    row = dict(zip(columns, (value.strip() for value in values), strict=True))
    job = row["JobID"]
    if not _ID.fullmatch(job):
        raise ValueError(f"JobID {_short(job)} is none")
    pool = next((pool_of[name] for name in row["Partition"].split(",") if name in pool_of), None)
    if "." in job:
        reason = "steps of jobs (leave them out with -X)"
    elif "[" in job:
        reason = "tasks of arrays that had not started"
    elif pool is None:
        reason = f"jobs of the partition {_short(row['Partition'])}, which is no pool of the settings"
    elif row["ElapsedRaw"] in _UNKNOWN or int(_number(row, "ElapsedRaw")) == 0:
        reason = "jobs that never ran"
    else:
        if "+" in job:
            left_out["parts of heterogeneous jobs, each taken for a job of its own (not left out)"] += 1
        return _job(row, job, pool)
    left_out[reason] += 1
    return None


def _job(row: Mapping[str, str], job: str, pool: str) -> JobSpec:
    nodes = int(_number(row, "NNodes"))
    if not 1 <= nodes <= 10_000:
        raise ValueError(f"NNodes {nodes} is not between 1 and 10000")
    run_s = _number(row, "ElapsedRaw")
    if run_s > DAYS_MAX * 86400:
        raise ValueError(f"ElapsedRaw {run_s:.0f} is more than {DAYS_MAX} days")
    tres = _tres(row.get("ReqTRES") or row.get("AllocTRES") or "")
    gpus = _each(tres.get("gres/gpu"), nodes)
    cpus = _each(tres.get("cpu"), nodes)
    user = (row.get("User") or "user")[:63]
    return JobSpec(job, user, pool, _time(row["Submit"]), nodes, run_s, cpus, gpus)


def _number(row: Mapping[str, str], column: str) -> float:
    value = row[column]
    if not re.fullmatch(r"\d{1,10}", value):
        raise ValueError(f"{column} {_short(value)} is not a whole number (sacct prints those with --noconvert)")
    return float(value)


def _time(value: str) -> float:
    """Seconds of a moment, for differences: the dump has the time of one zone."""
    moment = None
    if _TIME.fullmatch(value):
        with suppress(ValueError):
            moment = datetime.fromisoformat(value)
    if moment is None:
        example = "2026-11-01T09:30:00 (sacct prints those unless SLURM_TIME_FORMAT is set)"
        raise ValueError(f"Submit {_short(value)} is not a time such as {example}")
    return (moment - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001


def _tres(text: str) -> dict[str, float]:
    """Counts of `cpu=8,gres/gpu=2,gres/gpu:h100=2,mem=64G,node=1`; GPUs of a model count as GPUs."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.startswith("gres/gpu:"):
            name = "gres/gpu"
            if name in found:
                continue
        if re.fullmatch(r"\d{1,9}", value):
            found[name] = float(value)
    return found


def _each(total: float | None, nodes: int) -> int | None:
    """Of each node, where a job has so many in all."""
    return None if total is None else -(-int(total) // nodes)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
