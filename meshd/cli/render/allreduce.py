"""How `meshctl test` shows its result."""

from __future__ import annotations

from rich.console import RenderableType

from meshd.api.schema import AllReduceRow, AllReduceView
from meshd.cli.render.table import Table
from meshd.cli.render.terminal import clean_text

_STYLES = {"ok": "green", "slow": "yellow"}


def allreduce(view: AllReduceView) -> list[RenderableType]:
    """The groups that were measured, then a verdict about each node."""
    nodes = Table(
        ("NODE", "VERDICT", "GB/S", "DEVICE", "PYTORCH", "WHY"),
        [
            (node.node, clean_text(node.verdict, _STYLES.get(node.verdict, "bold red")),
             f"{node.gb_per_s:.3f}" if node.gb_per_s else "-", node.device or "-", node.torch or "-", node.text)
            for node in view.nodes
        ],
        optional=("PYTORCH", "DEVICE"),
    )  # fmt: skip
    if not view.groups:
        return [nodes]
    groups = Table(
        ("NODES", "LATENCY", "GB/S", "SUMS"),
        [(_name(row, view), f"{row.latency_us:.0f} us", f"{row.gb_per_s:.3f}", "right" if row.right else "WRONG")
         for row in view.groups],
    )  # fmt: skip
    return [groups, "", nodes]


def _name(row: AllReduceRow, view: AllReduceView) -> str:
    if len(row.nodes) == len(view.nodes) > 2:
        return f"all {len(row.nodes)}"
    return " ".join(row.nodes)
