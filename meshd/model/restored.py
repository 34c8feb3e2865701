"""An older journal was restored: which clouds were not listed since. PURE."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Restored:
    """What is not known of the world since an older journal was restored.

    Attributes:
        at: when it was restored, UTC.
        unlisted: the clouds that may have machines which the journal does not know; at least one.
        pools: the pools that may have such machines.
    """

    at: datetime
    unlisted: frozenset[str]
    pools: frozenset[str]

    def words(self, clouds: Collection[str] = ()) -> str:
        """Why nothing is rented or ended, in one sentence that stays the same from tick to tick; of all, or of some."""
        names = sorted(clouds or self.unlisted)
        those, may = (f"{names[0]} was", "it") if len(names) == 1 else (f"{' and '.join(names)} were", "they")
        return (
            f"an older journal was restored at {self.at:%Y-%m-%d %H:%M} UTC, and {those} not listed since: "
            f"{may} may have machines that the journal does not know"
        )
