"""PURE: what the reports of recipes/allreduce/allreduce.py say about the nodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from meshd.api.schema.allreduce import AllReduceRow, AllReduceView, NodeVerdict

SLOW = 0.5
"""A node whose best pair has less than this part of the usual bandwidth is slow."""
LINE_MAX = 4096
LATENCY_BYTES = 8


class _Report(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class RankReport(_Report):
    """A line of a rank about itself: what it runs on, or why it cannot."""

    rank: int = Field(ge=0, le=1 << 20)
    node: str = Field(max_length=64)
    device: str = Field("", max_length=100)
    torch: str = Field("", max_length=100)
    code: str = Field("", max_length=20)
    error: str = Field("", max_length=1000)


class GroupReport(_Report):
    """A line of a group's first rank: one measurement."""

    group: tuple[str, ...] = Field(min_length=1, max_length=10000)
    bytes: int = Field(gt=0)
    us: float = Field(ge=0)
    gb_per_s: float = Field(ge=0)
    right: bool


_ANY: TypeAdapter[GroupReport | RankReport] = TypeAdapter(GroupReport | RankReport)


def reports(output: str) -> Iterator[RankReport | GroupReport]:
    """The reports in what the tasks printed. Other lines are somebody else's."""
    for line in output.splitlines():
        if line.startswith("{") and len(line) <= LINE_MAX * 4:
            try:
                yield _ANY.validate_python(json.loads(line))
            except (ValueError, ValidationError, RecursionError):
                continue


def judge(nodes: Sequence[str], found: Iterable[RankReport | GroupReport], *, measured: bool = True) -> AllReduceView:
    """A verdict about each node.

    Args:
        nodes: those that were tested.
        found: what their ranks reported.
        measured: they were to measure; otherwise they only told whether they can.
    """
    ranks: dict[str, list[RankReport]] = {node: [] for node in nodes}
    groups: dict[tuple[str, ...], AllReduceRow] = {}
    for report in found:
        if isinstance(report, RankReport):
            ranks.get(report.node, []).append(report)
        elif set(report.group) <= ranks.keys():
            row = groups.setdefault(report.group, AllReduceRow(nodes=list(report.group)))
            latency = report.bytes == LATENCY_BYTES
            changed: dict[str, Any] = {"latency_us": report.us} if latency else {"gb_per_s": report.gb_per_s}
            groups[report.group] = row.model_copy(update={**changed, "right": row.right and report.right})
    rows = sorted(groups.values(), key=lambda row: (-len(row.nodes), row.nodes))
    best = {node: max((row.gb_per_s for row in _of(node, rows)), default=0.0) for node in nodes}
    verdicts = [_verdict(node, ranks[node], rows, best, measured=measured) for node in nodes]
    return AllReduceView(nodes=verdicts, groups=rows)


def _of(node: str, rows: Sequence[AllReduceRow]) -> list[AllReduceRow]:
    """The measurements that say most about a node: of its pairs, where there are any."""
    own = [row for row in rows if node in row.nodes]
    fewest = min((len(row.nodes) for row in own), default=0)
    return [row for row in own if len(row.nodes) == fewest]


def _verdict(
    node: str,
    ranks: Sequence[RankReport],
    rows: Sequence[AllReduceRow],
    best: Mapping[str, float],
    *,
    measured: bool,
) -> NodeVerdict:
    told = max(ranks, key=lambda report: bool(report.device), default=None)
    failed = next((report for report in ranks if report.code), None)
    own = _of(node, rows)
    verdict, text = _judged(failed, told, own, best[node], best, measured=measured)
    return NodeVerdict(
        node=node, verdict=verdict, text=text, device=told.device if told else "", torch=told.torch if told else "",
        gb_per_s=best[node],
    )  # fmt: skip


def _judged(
    failed: RankReport | None,
    told: RankReport | None,
    own: Sequence[AllReduceRow],
    rate: float,
    best: Mapping[str, float],
    *,
    measured: bool,
) -> tuple[str, str]:
    if failed is not None:
        return ("no_torch" if failed.code == "no_torch" else "failed"), failed.error
    if told is None:
        return "silent", "its tasks reported nothing"
    if not measured:
        return "ok", ""
    if not own:
        return "failed", "it did not come as far as a sum"
    if wrong := [row for row in own if not row.right]:
        return "wrong_sum", f"wrong sums with {', '.join(wrong[0].nodes[:4])}"
    usual = median(best.values())
    if len(own[0].nodes) == 2 and len(best) > 2 and rate < SLOW * usual:
        return "slow", f"{rate:.3f} GB/s in its best pair, where {usual:.3f} is usual"
    return "ok", ""
