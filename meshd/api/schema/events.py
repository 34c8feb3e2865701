"""What happened: `meshctl events`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field, field_validator

from meshd.api.schema.base import Document, Name, Request

EVENTS_MAX = 1000
WAIT_MAX_S = 30.0

Names = Annotated[tuple[Name, ...], Field(max_length=100)]


class EventsQuery(Request):
    """The query string of GET /v1/events. A field left out limits nothing; `machine` and `kind` may be repeated.

    Attributes:
        after_id: only events with a higher id, oldest first; None: the newest ones.
        wait_s: if nothing matches, wait this long for the first event.
        machine: only events of these machines; a slot stands for its newest machine.
        pool: only events of the pool and of its machines.
        since: only events since then.
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
    """An event. `fields` are for programs, `text` is for people.

    Attributes:
        id: grows, also across restarts.
        kind: which event it is (docs/codes.md): stable, the text is not.
    """

    id: int
    at: AwareDatetime
    kind: str
    text: str
    machine: str = ""
    pool: str = ""
    fields: dict[str, str | int | float | bool | None] = {}


class EventsView(Document):
    """Events, oldest first. Go on from `last_id`, also when no event matched."""

    events: list[EventRow] = []
    last_id: int = 0
