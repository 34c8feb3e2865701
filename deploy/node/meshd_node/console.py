"""What people are told: standard error (the journal keeps it), and the console for what must not be missed."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

_console = Path("/dev/console")


def use_console(path: Path) -> None:
    """Send urgent lines to this file too."""
    global _console
    _console = path


def say(text: str, urgent: bool = False) -> None:
    """One line. Never hand it a secret.

    Args:
        text: what happened.
        urgent: also to the console, where the cloud's console output shows it.
    """
    line = "meshd: " + " ".join(text.split()) + "\n"
    sys.stderr.write(line)
    sys.stderr.flush()
    if urgent:
        with suppress(OSError), _console.open("w") as file:
            file.write(line)
