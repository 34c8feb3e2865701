"""A test of the receivers of notifications: `meshctl notify test`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from meshd.api.schema.base import Document, Part, Request


class NotifyTestRequest(Request):
    """Send a test message; `receiver` names one of the settings, "" means all."""

    receiver: Annotated[str, Field(max_length=63)] = ""


class NotifyTestRow(Part):
    """What came of one receiver.

    Attributes:
        receiver: its name in the settings.
        ok: it took the message.
        text: what it answered, or why it could not be told.
    """

    receiver: str
    ok: bool
    text: str


class NotifyTestAnswer(Document):
    """A row for each receiver."""

    rows: list[NotifyTestRow] = []
