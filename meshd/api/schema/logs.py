"""The ends of a machine's logs: `meshctl logs`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field, field_validator

from meshd.api.schema.base import Document, Name, Part, Request

PartName = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z0-9_.@-]+$")]


class LogsQuery(Request):
    """The query string of GET /v1/logs: a machine, or a slot, which stands for its newest machine.

    Attributes:
        lines: of each log.
        part: only these parts; empty: all. `console` asks the cloud also for a machine that has joined.
    """

    machine: Name
    lines: Annotated[int, Field(ge=1, le=2000)] = 200
    part: Annotated[tuple[PartName, ...], Field(max_length=16)] = ()

    @field_validator("part", mode="before")
    @classmethod
    def _one_or_several(cls, words: object) -> object:
        return ((words,) if words else ()) if isinstance(words, str) else words


class LogRow(Part):
    """The end of one log.

    Attributes:
        part: `console` (as the cloud shows it), `boot` (cloud-init), `stage1`, `setup`, `agent`, `slurmd`, `munged`,
            `tailscaled` or, in a pod, `meshnetd`.
        source: `agent`, `cloud`, or `kept`: as it was when the head kept it.
        at: when it was read.
        text: its last lines, oldest first.
    """

    part: str
    source: str
    at: AwareDatetime
    text: str


class ReportRow(Part):
    """What the head itself recorded: a report of the machine, or why it was given up."""

    at: AwareDatetime
    text: str


class LogsView(Document):
    """The logs of a machine.

    Attributes:
        phase: the machine's.
        problem: what keeps it from the next phase, or why it was given up; "" when all is well.
        logs: the ends of its logs.
        reports: what it reported to the head, and why it failed, oldest first.
        notes: why logs are missing.
    """

    machine: str
    slot: str
    provider: str
    phase: str
    problem: str = ""
    logs: list[LogRow] = []
    reports: list[ReportRow] = []
    notes: list[str] = []
