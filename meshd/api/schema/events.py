"""What happened: `meshctl events`."""

from __future__ import annotations

from pydantic import AwareDatetime

from meshd.api.schema.base import Document


class EventRow(Document):
    """Something that happened. `fields` are for programs, `text` is for people.

    Attributes:
        id: grows; also over restarts.
        kind: e.g. `phase`, `failure`, `scale`, `problem`.
    """

    id: int
    at: AwareDatetime
    kind: str
    text: str
    machine: str = ""
    pool: str = ""
    fields: dict[str, str | int | float | bool | None] = {}


class EventsView(Document):
    """Events, oldest first. `last_id` is where to go on, also when none matched."""

    events: list[EventRow] = []
    last_id: int = 0
