"""Paperspace's refusals as errors of the contract. PURE: no I/O, no clock.

Every operation declares only 200 and a default error {"code", "message"}; the codes are those of tRPC. Capacity and
quota have no code, so the text decides. Only code and message are kept of the body: `details` and `issues` may repeat
the request, and a startup script holds a secret.
"""

from __future__ import annotations

import re

from meshd.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
    Uncertain,
)
from meshd.provider_api import ProviderName
from providers._answers import Answer

PAPERSPACE = ProviderName("paperspace")


class NotDeletable(Transient):
    """The machine cannot be deleted in its current state: it runs, or another action is in progress."""


_CAPACITY = re.compile(
    r"out of capacity|no (?:more |available )?capacity|(?:insufficient|not enough) (?:capacity|resources)"
    r"|no machines? (?:is |are )?available|(?:currently|temporarily) unavailable",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"quota|maximum (?:number|amount)|max(?:imum)? \w*\s?machines?\b|machine limit"
    r"|limit (?:has been )?(?:reached|exceeded)|(?:reached|exceed\w*|over) (?:your|the|its)\b[\w ]* limit"
    r"|request (?:access|an increase)|not approved|require\w* approval",
    re.IGNORECASE,
)
_BILLING = re.compile(
    r"billing|payment|credit card|past due|account (?:is )?(?:suspended|on hold|locked)", re.IGNORECASE
)
_CODES = {
    "PARSE_ERROR": 400,
    "BAD_REQUEST": 400,
    "UNAUTHORIZED": 401,
    "FORBIDDEN": 403,
    "NOT_FOUND": 404,
    "METHOD_NOT_SUPPORTED": 405,
    "TIMEOUT": 408,
    "CONFLICT": 409,
    "PRECONDITION_FAILED": 412,
    "PAYLOAD_TOO_LARGE": 413,
    "TOO_MANY_REQUESTS": 429,
    "CLIENT_CLOSED_REQUEST": 499,
    "INTERNAL_SERVER_ERROR": 500,
}


def to_error(answer: Answer, *, operation: str, changes: bool) -> ProviderError:
    """The contract's error for an error answer.

    Args:
        answer: the answer.
        operation: the contract's name of the call.
        changes: whether the call may have made or ended a machine.
    """
    detail = answer.body if isinstance(answer.body, dict) else {}
    code, words = str(detail.get("code") or ""), str(detail.get("message") or "")
    said = f"{code}: {words}" if code else f"HTTP {answer.status} without an error code"
    vendor_text = said if code else answer.text
    meant = _CODES.get(code, answer.status)
    if 429 in (answer.status, meant):
        return RateLimited(
            said, retry_after_s=answer.retry_after_s, provider=PAPERSPACE, operation=operation, vendor_text=vendor_text
        )
    kind = refusal_kind(words) if operation == "launch" else None
    if kind is None or (kind is not NoCapacity and meant >= 500):
        kind = _by_status(meant, operation, changes, coded=bool(code))
    return kind(said, provider=PAPERSPACE, operation=operation, vendor_text=vendor_text)


def refusal_kind(words: str) -> type[ProviderError] | None:
    """The kind of refusal in a message on a launch; None when it is none of them."""
    if _CAPACITY.search(words):
        return NoCapacity
    if _BILLING.search(words):
        return AuthFailed
    return QuotaExceeded if _QUOTA.search(words) else None


def _by_status(status: int, operation: str, changes: bool, *, coded: bool) -> type[ProviderError]:
    if status in (401, 402, 403):
        return AuthFailed
    if status in (408, 499) or status >= 500 or not coded:
        return Uncertain if changes else Transient
    if operation == "terminate" and status in (400, 409, 412):
        return NotDeletable
    if status == 404:
        # On a launch, something that the request names is missing: the template, the script, the network.
        return InvalidRequest if operation == "launch" else NotFound
    return Transient if status == 409 else InvalidRequest
