"""What a cloud answers, and what is in doubt when it does not. PURE."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from meshd.errors import ProviderError, Transient, Uncertain

MAX_VENDOR_TEXT = 400
RETRY_AFTER_MAX_S = 3600.0
"""A cloud that wants to be left alone for longer is asked once more after this."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A cloud's answer.

    Attributes:
        status: the HTTP status.
        body: the decoded JSON; None when the body is not JSON.
        text: the body's first characters, for `meshctl events`.
        retry_after_s: seconds from the Retry-After header; None when absent or unreadable.
        headers: all of the answer's, names in lower case.
    """

    status: int
    body: Any
    text: str
    retry_after_s: float | None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_json(self) -> bool:
        """Whether the body was a JSON object."""
        return isinstance(self.body, dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a cloud with error codes said no with.

    Attributes:
        code: its error code; the HTTP status as text when it told none.
        status: the HTTP status; 0 when it told none, as in an operation that failed later.
        message: its words.
        retry_after_s: from the Retry-After header; None when absent.
    """

    code: str
    status: int
    message: str
    retry_after_s: float | None = None


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Seconds to wait, from either form of Retry-After (RFC 9110, 10.2.3); None when there is nothing to read."""
    if not header:
        return None
    if re.fullmatch(r"[0-9]{1,9}", header.strip()):
        return min(float(header), RETRY_AFTER_MAX_S)
    try:
        at = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return min(max(0.0, (at - now).total_seconds()), RETRY_AFTER_MAX_S)


def in_doubt(text: str, *, changes: bool, provider: str, operation: str, vendor_text: str = "") -> ProviderError:
    """The error of a call whose effect cannot be known: Uncertain when it changes things, else Transient."""
    kind = Uncertain if changes else Transient
    return kind(text, provider=provider, operation=operation, vendor_text=vendor_text)
