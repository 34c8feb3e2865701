"""A copy of the journal as an older meshd left it: the way back to that version."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from meshd.store.migrations import MIGRATIONS, form


def keep_former(db: sqlite3.Connection, path: Path) -> None:
    """Copy the journal to `NAME.form-N` beside it (0600), if this meshd is about to change its form N.

    The newest copy alone is kept.

    Args:
        db: the open journal.
        path: its file.

    Raises:
        sqlite3.Error, OSError: it cannot be copied, e.g. the disk is full.
    """
    former = form(db)
    if not 0 < former < len(MIGRATIONS):
        return
    copy = path.with_name(f"{path.name}.form-{former}")
    unfinished = copy.with_name(f"{copy.name}.new")
    unfinished.unlink(missing_ok=True)
    # sqlite writes into an empty file, and leaves its mode as it is.
    unfinished.touch(mode=0o600)
    db.execute("VACUUM INTO ?", (str(unfinished),))
    _sync(unfinished)
    unfinished.replace(copy)
    _sync(copy.parent)
    for older in path.parent.glob(f"{path.name}.form-*"):
        if older != copy:
            older.unlink()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
