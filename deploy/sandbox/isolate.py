"""Runs a builder so that what it mounts and starts is gone when it ends, however it ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def in_own_namespaces(argv: Sequence[str | Path]) -> list[str]:
    """The same command in a private mount namespace and as first process of a PID namespace."""
    return [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        *(str(word) for word in argv),
    ]
