"""Events of the journal: new ones, stored ones, and the queries for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final, LiteralString

from meshd.codes import EventKind


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, as `meshctl events` shows it.

    Attributes:
        kind: of `EventKind`, or what an older meshd wrote.
    """

    id: int
    at: datetime
    machine: str
    kind: str
    text: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events. Empty fields do not constrain.

    Attributes:
        machines: names of machines.
        kinds: as in `Event.kind`.
        pool: the pool's own events, and those of its machines, also of those that are gone.
        since: not older than this.
    """

    machines: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    pool: str = ""
    since: datetime | None = None


_EVENTS_WHERE: LiteralString = """ WHERE
    (?1 = '[]' OR machine IN (SELECT value FROM json_each(?1)))
    AND (?2 = '[]' OR kind IN (SELECT value FROM json_each(?2)))
    AND (?3 = '' OR machine IN (SELECT name FROM machines WHERE pool = ?3)
         OR (machine = '' AND (CASE WHEN json_valid(fields) THEN json_extract(fields, '$.pool') END) = ?3))
    AND at >= ?4
"""
_EVENTS: LiteralString = "SELECT * FROM events"
EVENTS_NEWEST: LiteralString = _EVENTS + _EVENTS_WHERE + " ORDER BY id DESC LIMIT ?5"
EVENTS_AFTER: LiteralString = _EVENTS + _EVENTS_WHERE + " AND id > ?6 ORDER BY id LIMIT ?5"
EVENTS_OF_POOL: LiteralString = """
    SELECT * FROM events WHERE machine IN (SELECT name FROM machines WHERE pool = ?1)
    OR (machine = '' AND (CASE WHEN json_valid(fields) THEN json_extract(fields, '$.pool') END) = ?1)
    ORDER BY id DESC LIMIT ?2
"""


def moment(text: str) -> datetime:
    """A stored time; UTC where it has no zone. Raises ValueError."""
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def event_of(row: Any) -> Event:
    """The event in a row. `unreadable` in its fields says that a part of the row cannot be read."""
    try:
        at, fields = moment(row[1]), json.loads(row[5])
    except (ValueError, RecursionError):
        at, fields = datetime.fromtimestamp(0, UTC), {"unreadable": True}
    return Event(row[0], at, row[2], row[3], row[4], fields if isinstance(fields, dict) else {"unreadable": True})


TEXT_MAX_CHARS: Final = 2000
FIELDS_MAX_CHARS: Final = 8000


class Origin(IntEnum):
    """Who caused an event. Each origin has its own share of the log, so that none pushes the others' events out."""

    MESHD = 0
    NODE = 1
    PEOPLE = 2


OF_PEOPLE: Final = frozenset({
    EventKind.TARGET, EventKind.REMOVE, EventKind.DRAIN, EventKind.UNDRAIN, EventKind.AUTH_KEY_ROTATION,
    EventKind.MUNGE_KEY, EventKind.NODE_TOKEN, EventKind.JOURNAL,
})  # fmt: skip
"""Kinds that are kept in people's share even if meshd caused them: orders, and changes of secrets."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to write; `machine` is "" when it is about no machine."""

    at: datetime
    kind: EventKind
    text: str
    machine: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin = Origin.MESHD

    @property
    def share(self) -> Origin:
        """The share of the log that it counts towards."""
        return Origin.PEOPLE if self.kind in OF_PEOPLE and self.origin is Origin.MESHD else self.origin
