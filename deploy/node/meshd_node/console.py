"""Messages for people: to standard error, which the journal keeps, and urgent ones to the console too."""

from __future__ import annotations

import sys
import syslog
from contextlib import suppress
from pathlib import Path

_console = Path("/dev/console")
_journal = False


def use_console(path: Path) -> None:
    """Send urgent lines to this file too."""
    global _console
    _console = path


def use_journal() -> None:
    """Send all lines to the journal too: standard error is another file. They stand among those of stage 1."""
    global _journal
    _journal = True
    syslog.openlog("meshd", 0, syslog.LOG_DAEMON)


def say(text: str, urgent: bool = False) -> None:
    """Write one line. The text must hold no secret.

    Args:
        text: what happened.
        urgent: write it also to the console, so that the cloud's console output shows it.
    """
    line = "meshd: " + " ".join(text.split()) + "\n"
    sys.stderr.write(line)
    sys.stderr.flush()
    if _journal:
        syslog.syslog(syslog.LOG_INFO, line)
    if urgent and _console.exists():  # a container has none
        with suppress(OSError), _console.open("w") as file:
            file.write(line)
