"""The terminal: whether it may be written to in colours, and in bold, which is one question."""

from __future__ import annotations

import os
from typing import IO

from rich.console import Console


def console(stream: IO[str]) -> Console:
    """A console on a stream. NO_COLOR (no-color.org) and CLICOLOR=0 (bixense.com/clicolors) mean plain text."""
    if os.environ.get("NO_COLOR") or os.environ.get("CLICOLOR") == "0" or os.environ.get("TERM") in {"dumb", ""}:
        return Console(file=stream, color_system=None, highlight=False)
    return Console(file=stream)
