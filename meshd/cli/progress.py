"""Shows how a wait goes, on stderr: a live table on a terminal, one line for each change elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import RenderableType
from rich.live import Live

from meshd.cli.render.terminal import clean_text, console
from meshd.cli.session import say
from meshd.plaintext import age

V_contra = TypeVar("V_contra", contravariant=True)
Changes = Callable[[V_contra], Iterable[str]]
"""The lines to print for a new view: what changed since the last one."""
Draw = Callable[[V_contra, float], RenderableType]
"""Draws a view; takes the elapsed seconds too."""


class Progress(Protocol[V_contra]):
    """Shows the view of each round, and notes between them."""

    def update(self, view: V_contra, elapsed_s: float) -> None:
        """Show a view."""
        ...

    def note(self, text: str) -> None:
        """Show a remark. The same remark several times in a row is shown once."""
        ...


class LineProgress(Progress[V_contra]):
    """Prints one line for each change."""

    def __init__(self, changes: Changes[V_contra]) -> None:
        self._changes = changes
        self._noted = ""

    def update(self, view: V_contra, elapsed_s: float) -> None:
        """Print what changed, with the elapsed time."""
        for line in self._changes(view):
            say(f"{age(elapsed_s):>6}  {line}")

    def note(self, text: str) -> None:
        """Print a remark."""
        if text != self._noted:
            say(f"        {text}")
        self._noted = text


class _LiveProgress(Progress[V_contra]):
    """Redraws a table in place. Notes scroll above it."""

    def __init__(self, live: Live, draw: Draw[V_contra]) -> None:
        self._live = live
        self._draw = draw
        self._noted = ""

    def update(self, view: V_contra, elapsed_s: float) -> None:
        self._live.update(self._draw(view, elapsed_s))

    def note(self, text: str) -> None:
        if text != self._noted:
            self._live.console.print(clean_text(text, "yellow"))
        self._noted = text


@contextmanager
def shown(changes: Changes[V_contra], draw: Draw[V_contra]) -> Iterator[Progress[V_contra]]:
    """The progress that suits stderr, for the time of a wait.

    Args:
        changes: gives the lines for a pipe.
        draw: draws the table for a terminal.
    """
    if not sys.stderr.isatty():
        yield LineProgress(changes)
        return
    with Live(console=console(sys.stderr), refresh_per_second=4) as live:
        yield _LiveProgress(live, draw)
