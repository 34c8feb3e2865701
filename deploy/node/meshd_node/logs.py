"""The ends of this machine's logs, for the head, in parts: systemd's journal, a pod's loggers, and log files."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .errors import NodeError, ToolMissing
from .node import Node
from .tools import run

LINES_MAX = 2000
TEXT_BYTES_MAX = 32 * 1024
"""For each part, as JSON: the head accepts 256 KiB in total."""
READ_BYTES = 256 * 1024
"""The most bytes read from the end of each log file."""
JOURNAL_S = 10.0


class Part(NamedTuple):
    """Where one part of the logs is.

    Attributes:
        matches: arguments of journalctl, on a machine with systemd.
        services: names of the services of s6, in a pod.
        files: log files below /, on any machine.
    """

    matches: Sequence[str] = ()
    services: Sequence[str] = ()
    files: Sequence[str] = ()


PARTS = {
    "boot": Part(files=("var/log/cloud-init-output.log",)),
    "stage1": Part(("-t", "meshd"), ("start",)),
    "setup": Part(files=("var/log/meshd-node-setup.log",)),
    "agent": Part(("-u", "meshd-node.service"), ("meshd-node",)),
    "slurmd": Part(("-u", "meshd-slurmd.service"), ("slurmd",), ("var/log/slurm/slurmd.log",)),
    "munged": Part(("-u", "munge.service"), ("munged",), ("var/log/munge/munged.log",)),
    "tailscaled": Part(("-u", "tailscaled.service"), ("tailscaled",)),
    "meshnetd": Part(services=("meshnetd",)),
}
"""By name, in the order in which a machine comes to write them."""


def collect(node: Node, lines: int, parts: Iterable[str] = ()) -> dict[str, str]:
    """The last lines of each part. A part that is missing or empty has no entry.

    Args:
        node: this machine.
        lines: of each log, 2,000 at most.
        parts: which ones; empty: all. Unknown names are ignored.
    """
    lines, wanted = max(1, min(lines, LINES_MAX)), frozenset(parts)
    found = {
        name: "\n".join(text for text in _texts(node, part, lines) if text)
        for name, part in PARTS.items()
        if not wanted or name in wanted
    }
    return {name: _fitting(text) for name, text in found.items() if text}


def _texts(node: Node, part: Part, lines: int) -> Iterator[str]:
    """The logs of a part, each short enough to leave room for the others."""
    if node.systemd and part.matches:
        yield _of_journal(part.matches, lines)
    if not node.systemd:
        for name in part.services:
            yield _last_lines(_of_logger(node.paths.pod_logs / name), lines)
    for name in part.files:
        yield _last_lines(_end_of(node.paths.root / name), lines)[-TEXT_BYTES_MAX // 2 :]


def _of_journal(matches: Sequence[str], lines: int) -> str:
    """A journal that cannot be read is no reason to hold back the other logs."""
    argv = ["journalctl", "--no-pager", "-q", "-o", "short-iso", "-n", str(lines), *matches]
    try:
        return run(argv, JOURNAL_S, check=False).stdout.strip("\n")
    except ToolMissing:
        return ""
    except NodeError as error:
        return f"(the journal cannot be read: {error})"


def _of_logger(directory: Path) -> str:
    """The logger renames `current` to @TIME.s when it is full: a short one does not have all last lines."""
    files = [*sorted(directory.glob("@*")), directory / "current"]
    return "".join(_end_of(path) for path in files)


def _last_lines(text: str, lines: int) -> str:
    return "\n".join(text.splitlines()[-lines:])


def _end_of(path: Path) -> str:
    """The end of a log file; "" when it cannot be read. A file of months is too long to read whole.

    Some logs are in directories of other users, e.g. munge's: a link there would show any file of root's, and a fifo
    would never end.
    """
    try:
        fd = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return ""
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
