"""What happened: `meshctl events`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field, field_validator

from meshd.api.schema.base import Document, Name, Request

EVENTS_MAX = 1000
WAIT_MAX_S = 30.0

Names = Annotated[tuple[Name, ...], Field(max_length=100)]


class EventsQuery(Request):
    """The query string of GET /v1/events. `machine` and `kind` may be repeated; what is left out does not constrain.

    Attributes:
        after_id: only those with a higher id, oldest first; None: the newest ones.
        wait_s: with nothing to return, wait this long for the first one.
        machine: only those of these machines; a slot stands for its newest machine.
        pool: only the pool's own, and those of its machines.
        since: not older than this.
    """

    after_id: int | None = Field(None, ge=0)
    limit: int = Field(100, gt=0, le=EVENTS_MAX)
    wait_s: float = Field(0.0, ge=0, le=WAIT_MAX_S)
    machine: Names = ()
    kind: Names = ()
    pool: str = Field("", max_length=63)
    since: AwareDatetime | None = None

    def waits_s(self) -> float:
        """As asked for."""
        return self.wait_s

    @field_validator("machine", "kind", mode="before")
    @classmethod
    def _one_or_several(cls, words: object) -> object:
        return ((words,) if words else ()) if isinstance(words, str) else words


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
