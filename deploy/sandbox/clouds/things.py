"""What lies on a stand-in's account besides machines and images: volumes, addresses and snapshots."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Thing:
    """One of them.

    Attributes:
        kind: `volume`, `address` or `snapshot`.
        attached_to: the id of the machine that has it; "" for none.
    """

    kind: str
    id: str
    name: str
    region: str
    created_at: datetime
    tags: Mapping[str, str] = field(default_factory=dict)
    attached_to: str = ""
    size_gib: int = 100


class Things:
    """All of one account, oldest first. `now` is UTC."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._all: list[Thing] = []

    def add(
        self, kind: str, region: str, *, name: str = "", tags: Mapping[str, str] | None = None, attached_to: str = "",
        thing_id: str = "", age: timedelta = timedelta(),
    ) -> Thing:  # fmt: skip
        """Put one there; its id is a random number in hexadecimal where none is given."""
        since = self._now() - age
        made = Thing(kind, thing_id or uuid.uuid4().hex[:17], name, region, since, dict(tags or {}), attached_to)
        self._all.append(made)
        return made

    def clear(self) -> None:
        """Take all away."""
        self._all.clear()

    def of(self, kind: str) -> list[Thing]:
        """All of a kind."""
        return [one for one in self._all if one.kind == kind]
