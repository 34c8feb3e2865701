"""Answers of a cloud, and the error of a call that got none. PURE."""

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
"""The longest Retry-After that meshd keeps to. After this time it tries again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer of a cloud.

    Attributes:
        status: the HTTP status.
        body: the decoded JSON; None when the body is not JSON.
        text: the first characters of the body, for `meshctl events`.
        retry_after_s: seconds from the Retry-After header; None when absent or unreadable.
        headers: all headers, with names in lower case.
    """

    status: int
    body: Any
    text: str
    retry_after_s: float | None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_json(self) -> bool:
        """Whether the body is a JSON object."""
        return isinstance(self.body, dict)


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """A cloud's error answer that has an error code.

    Attributes:
        code: the error code; the HTTP status as text when there is none.
        status: the HTTP status; 0 when there is none, as in an operation that failed later.
        message: the error text.
        retry_after_s: from the Retry-After header; None when absent.
    """

    code: str
    status: int
    message: str
    retry_after_s: float | None = None


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Seconds to wait, from either form of Retry-After (RFC 9110, 10.2.3); None when it is missing or unreadable."""
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


def utc_time(text: object) -> datetime | None:
    """A time in ISO 8601, as UTC when it has no zone; None when it is missing or unreadable."""
    try:
        at = datetime.fromisoformat(str(text or ""))
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def unclear(text: str, *, changes: bool, provider: str, operation: str, vendor_text: str = "") -> ProviderError:
    """The error of a call whose effect is unknown: Uncertain when it changes something, else Transient."""
    kind = Uncertain if changes else Transient
    return kind(text, provider=provider, operation=operation, vendor_text=vendor_text)
