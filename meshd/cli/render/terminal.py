"""Printing on a terminal or into a pipe, and the small parts that every command shows: phases, severities."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console, RenderableType
from rich.text import Text

from meshd.runtime.terminal import clean

_PIPE_WIDTH = 10_000
_PHASE_STYLES = {"ready": "green", "draining": "yellow", "terminating": "yellow", "lost": "bold red"}
_SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "fail": "bold red", "warn": "yellow", "ok": "green"}


def console(stream: IO[str]) -> Console:
    """A console on a stream. NO_COLOR (no-color.org) and CLICOLOR=0 (bixense.com/clicolors) mean plain text."""
    if os.environ.get("NO_COLOR") or os.environ.get("CLICOLOR") == "0" or os.environ.get("TERM") in {"dumb", ""}:
        return Console(file=stream, color_system=None, highlight=False)
    return Console(file=stream)


def show(*parts: RenderableType, err: bool = False, wide: bool = False) -> None:
    """Print on a terminal in its width and colours, into a pipe as plain lines of any length.

    Args:
        parts: what to print, one below the other.
        err: print on stderr.
        wide: show all columns of a table: lines may be longer than the terminal is wide.
    """
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        out = console(stream)
        if wide:
            out.width = max(out.width, _PIPE_WIDTH)
        out.print(*parts, sep="\n", soft_wrap=wide)
        return
    stream.write(plain(*parts))
    stream.flush()  # an error on stderr comes after it, also where both go into one file


@contextmanager
def spinner(message: str) -> Iterator[None]:
    """Show a message on stderr while the body runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with console(sys.stderr).status(message):
        yield


def plain(*parts: RenderableType) -> str:
    """The parts as text without colours, added line breaks, or blanks at line ends."""
    buffer = io.StringIO()
    Console(file=buffer, width=_PIPE_WIDTH, color_system=None, force_terminal=False).print(*parts, sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def clean_text(value: object, style: str = "") -> Text:
    """Text of others, without control characters, and never read as rich's markup."""
    return Text(clean(str(value)), style=style)


def phase(name: str) -> Text:
    """A machine's phase in its colour."""
    return clean_text(name, _PHASE_STYLES.get(name, "cyan"))


def severity(name: str) -> Text:
    """A problem's severity, or a check's status, in its colour."""
    return clean_text(name, _SEVERITY_STYLES.get(name, ""))
