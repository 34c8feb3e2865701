"""Two ways to show a wait: a live table on a terminal, one line for each change elsewhere. Both on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live

from meshd.api.schema import NodeRow, ScaleAnswer, StatusView
from meshd.cli import render
from meshd.cli.console import console
from meshd.cli.session import say
from meshd.cli.sheet import Sheet
from meshd.cli.watch import Progress
from meshd.model.words import counted


def _why(node: NodeRow) -> str:
    if node.phase == "draining" and node.jobs:
        return f"waits for job {', '.join(node.jobs)}"
    return node.failure or node.reason


class LineProgress:
    """One line for each machine that enters a phase."""

    def __init__(self) -> None:
        self._phases: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        self._noted: str = ""

    def update(self, nodes: Sequence[NodeRow], status: StatusView, elapsed_s: float) -> None:
        """Tell what changed since the last time."""
        for node in nodes:
            before = self._phases.get(node.machine)
            if before != node.phase:
                arrow = f"{before} -> {node.phase}" if before else node.phase
                why = f" ({_why(node)})" if _why(node) else ""
                say(f"{render.age(elapsed_s):>6}  {node.machine}: {arrow}{why}")
            elif node.failure and self._failures.get(node.machine) != node.failure:
                say(f"{render.age(elapsed_s):>6}  {node.machine}: {node.failure}")
            self._failures[node.machine] = node.failure
        for name in set(self._phases) - {node.machine for node in nodes}:
            say(f"{render.age(elapsed_s):>6}  {name}: gone")
        self._phases = {node.machine: node.phase for node in nodes}

    def note(self, text: str) -> None:
        """A line of its own, once in a row."""
        if text != self._noted:
            say(f"        {text}")
        self._noted = text


class LiveProgress:
    """A table that is redrawn in place; notes scroll above it."""

    def __init__(self, live: Live, answer: ScaleAnswer) -> None:
        self._live = live
        self._answer = answer
        self._noted: str = ""

    def update(self, nodes: Sequence[NodeRow], status: StatusView, elapsed_s: float) -> None:
        """Draw."""
        ready = sum(node.gpus or 1 for node in nodes if node.phase == "ready")
        wanted = counted(self._answer.gpus, self._answer.unit)
        head = (
            f"pool {self._answer.pool}: {ready} of {wanted} ready, {render.age(elapsed_s)} elapsed, "
            f"{render.usd(sum(node.usd_per_hour for node in nodes))} per hour"
        )
        rows = [
            (
                node.machine,
                render.phase(node.phase),
                render.age((status.at - node.since).total_seconds()),
                _why(node),
            )
            for node in nodes
        ]
        machines = [Sheet(("MACHINE", "PHASE", "FOR", "WHY"), rows)] if rows else []
        self._live.update(Group(render.text(head, "bold"), *machines))

    def note(self, text: str) -> None:
        """A line above the table, once in a row."""
        if text != self._noted:
            self._live.console.print(render.text(text, "yellow"))
        self._noted = text


@contextmanager
def shown(answer: ScaleAnswer) -> Iterator[Progress]:
    """The way that suits stderr."""
    if not sys.stderr.isatty():
        yield LineProgress()
        return
    with Live(console=console(sys.stderr), refresh_per_second=4) as live:
        yield LiveProgress(live, answer)
