"""PURE: what a glance at the cluster says: for `meshctl top` and for the web page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshd.api.schema import BudgetRow, FreezeView, GpuLoadRow, NodeRow, StatusView
from meshd.plaintext import age

_LATE_S = 30.0
"""A tick takes a few seconds: one that is older than this is worth a word."""


def frozen(freeze: FreezeView) -> str:
    """The freeze that holds, on one line."""
    why = f": {freeze.reason}" if freeze.reason else ""
    return f"FROZEN since {freeze.since:%Y-%m-%d %H:%M} UTC by {freeze.by}{why} (`meshctl thaw` ends it)"


def silent(status: StatusView) -> Iterator[str]:
    """What does not answer, or is late."""
    if status.tick_age_s is not None and status.tick_age_s > _LATE_S:
        yield f"the last tick began {age(status.tick_age_s)} ago"
    for source in status.sources:
        if not source.ok:
            yield f"{source.name.removeprefix('provider:').replace('offers:', 'offers of ')} does not answer"
    if status.slurm.error:
        yield f"Slurm did not accept the last change: {status.slurm.error}"


def tightest(budget: Iterable[BudgetRow]) -> BudgetRow | None:
    """The limit with the least left; None where there is no limit."""
    return min(budget, key=lambda row: row.left_usd, default=None)


def mean_percent(loads: Sequence[GpuLoadRow]) -> float | None:
    """How busy GPUs are, on average; None when that is not known."""
    return sum(load.utilization_percent for load in loads) / len(loads) if loads else None


def memory(loads: Sequence[GpuLoadRow]) -> str:
    """The memory in use on all these GPUs; `-` when that is not known."""
    gib = sum(load.memory_used_mib for load in loads) / 1024
    return "-" if not loads else f"{gib:.0f} GiB" if gib < 10_000 else f"{gib / 1024:.0f} TiB"


def node_jobs(row: NodeRow) -> str:
    """The jobs on a machine; while it is on its way, those for which it was rented: `for 12`."""
    if row.jobs or row.phase in {"ready", "draining"}:
        return ",".join(row.jobs) or "-"
    return f"for {','.join(row.for_jobs)}" if row.for_jobs else "-"


def why(row: NodeRow) -> str:
    """The worst that there is to say of a machine; else why it is in its phase."""
    return row.failure or row.unfit_text or row.slurm_reason or row.reason


def where(row: NodeRow) -> str:
    """The cloud and the region."""
    return f"{row.provider}/{row.region}" if row.region else row.provider
