"""The journal's lock, and what to say when it cannot be opened."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from meshd.errors import StoreError


def cannot_open(path: Path, error: Exception) -> StoreError:
    """What is wrong, and what to do. Of a full or unreadable disk sqlite speaks as an OperationalError."""
    cause = error.__cause__ or error
    damaged = isinstance(cause, sqlite3.DatabaseError | ValueError) and not isinstance(cause, sqlite3.OperationalError)
    if damaged:
        words = str(cause).splitlines()[0]
        return StoreError(
            f"the journal {path} is damaged: {words}. Move it away and start meshd: it finds its machines again by "
            "their tags; targets must be set anew"
        )
    return error if isinstance(error, StoreError) else StoreError(f"the journal {path} cannot be opened: {error}")


def lock(path: Path) -> int:
    """Take the lock that makes this process the only writer; the kernel drops it when the process ends."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be made: {error.strerror}: cluster.state_dir must exist and belong to SlurmUser"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise StoreError(f"another meshd runs with this journal ({path} is locked)") from error
    return fd
