"""A freeze: while it holds, meshd rents nothing and ends nothing. PURE."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

REASON_MAX = 200


@dataclass(frozen=True, slots=True)
class Freeze:
    """Who froze meshd, when (UTC) and why; the reason may be ""."""

    at: datetime
    by: str
    reason: str = ""

    @property
    def words(self) -> str:
        """The same in one sentence, which stays the same from tick to tick."""
        why = f": {self.reason}" if self.reason else ""
        return f"meshd is frozen since {self.at:%Y-%m-%d %H:%M} UTC by {self.by}{why}"
