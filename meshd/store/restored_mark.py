"""The mark of a journal that was put back: it is older than the world. It is in the file's header, of whatever form.

SQLite keeps one number there for the application. meshd's is 0, or when the journal was put back.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from meshd.errors import StoreError

_EPOCH: Final = datetime(2020, 1, 1, tzinfo=UTC)
_MOST: Final = 2**31 - 1
"""The number has 31 bits: until 2088."""


def mark(path: Path, now: datetime) -> None:
    """Mark a journal that nobody has open. Raises StoreError."""
    seconds = min(max(int((now - _EPOCH).total_seconds()), 1), _MOST)
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True, isolation_level=None)) as db:
            db.execute(f"PRAGMA application_id = {seconds}")
    except sqlite3.Error as error:
        raise StoreError(f"the journal {path} cannot be marked as restored: {error}") from error


def marked_at(number: int) -> datetime | None:
    """When a journal with this number was put back; None: it was not, since its mark was taken."""
    return _EPOCH + timedelta(seconds=number) if number > 0 else None
