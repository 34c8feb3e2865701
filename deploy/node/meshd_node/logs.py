"""The ends of the daemons' logs, for the head: of systemd's journal, of a pod's loggers, and of log files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import ToolMissing
from .node import Node
from .tools import run

LINES_MAX = 2000
TEXT_BYTES_MAX = 32 * 1024
"""For each log, as JSON: the head accepts 256 KiB in total."""
READ_BYTES = 256 * 1024
"""The most bytes read from the end of each log file."""
JOURNAL_S = 30.0
UNITS = ("meshd-node.service", "meshd-slurmd.service", "munge.service", "tailscaled.service")
POD_SERVICES = ("meshd-node", "slurmd", "munged", "tailscaled", "meshnetd", "start")


def collect(node: Node, lines: int, of: str) -> dict[str, str]:
    """The last lines of the logs whose name contains `of`, by name. A log that is missing or empty has no entry.

    Raises:
        ToolTimeout, ToolFailed: from journalctl.
    """
    lines = max(1, min(lines, LINES_MAX))
    return {name: _fitting(text) for name, text in _logs(node, lines, of) if text}


def _logs(node: Node, lines: int, of: str) -> Iterator[tuple[str, str]]:
    yield from _journal(lines, of) if node.systemd else _of_pod(node.paths.pod_logs, lines, of)
    for path in (node.paths.munge_log / "munged.log", node.paths.slurm_log / "slurmd.log"):
        if of in path.name:
            yield path.name, _last_lines(_end_of(path), lines)


def _journal(lines: int, of: str) -> Iterator[tuple[str, str]]:
    for unit in (unit for unit in UNITS if of in unit):
        argv = ["journalctl", "--no-pager", "-q", "-o", "short-iso", "-n", str(lines), "-u", unit]
        try:
            yield unit, run(argv, JOURNAL_S, check=False).stdout
        except ToolMissing:
            return


def _of_pod(directory: Path, lines: int, of: str) -> Iterator[tuple[str, str]]:
    for name in (name for name in POD_SERVICES if of in name):
        # The logger renames `current` to @TIME.s when it is full: a short one does not have all last lines.
        files = [*sorted((directory / name).glob("@*")), directory / name / "current"]
        yield name, _last_lines("".join(_end_of(path) for path in files), lines)


def _last_lines(text: str, lines: int) -> str:
    return "\n".join(text.splitlines()[-lines:])


def _end_of(path: Path) -> str:
    """The end of a log file; "" when it cannot be read. A file of months is too long to read whole."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - READ_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _fitting(text: str) -> str:
    """The end of a log that fits into TEXT_BYTES_MAX as JSON, where a character beyond ASCII takes six bytes."""
    text = text[-TEXT_BYTES_MAX:]
    while len(json.dumps(text)) > TEXT_BYTES_MAX:
        text = text[len(text) // 8 + 1 :]
    return text
