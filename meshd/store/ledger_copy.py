"""A copy of this month's lives beside the journal, so that a lost journal does not begin the month's sum at 0."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import structlog
from pydantic import TypeAdapter

from meshd.model.ledger import Life
from meshd.runtime.atomicfile import write_atomic
from meshd.store.ledger import Ledger

log = structlog.get_logger(__name__)

WRITTEN_EVERY_S = 300.0
"""How often the copy is written while nothing but time changes: a machine that is lost with the journal, and is never
found again, counts until then."""
LIVES_MAX = 50_000
_COPY = TypeAdapter(tuple[datetime, tuple[Life, ...]])


class LedgerCopy:
    """Writes and reads the copy.

    Args:
        path: the file.
        ledger: whose lives it has.
    """

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._path = path
        self._ledger = ledger
        self._written: tuple[datetime, tuple[Life, ...]] | None = None
        self.problem = ""

    def restore(self, now: datetime) -> int:
        """Put lives into the ledger whose machines it has never had: the journal was lost. Returns how many.

        Those that went on when the copy was written end there, unless their machines are found again by their clouds'
        listings: then they go on.
        """
        try:
            at, lives = _COPY.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, OverflowError, RecursionError) as error:
            self.problem = f"{self._path} cannot be read: {str(error).splitlines()[0]}"
            log.warning("ledger_copy_not_read", reason=self.problem)
            return 0
        over = min(at, now)
        return self._ledger.add_lost(
            life if life.until is not None else replace(life, until=max(life.since, life.end(over))) for life in lives
        )

    def write(self, now: datetime) -> None:
        """Write it, if anything has changed, or it is old while machines go on."""
        lives = self._ledger.this_month(LIVES_MAX)
        if self._written is not None:
            then, before = self._written
            alive = any(life.until is None for life in lives)
            if lives == before and not (alive and abs((now - then).total_seconds()) >= WRITTEN_EVERY_S):
                return
        try:
            write_atomic(self._path, _COPY.dump_json((now, lives)))
        except OSError as error:
            self.problem = f"{self._path} cannot be written: {error}"
            return
        self.problem = ""
        self._written = now, lives
