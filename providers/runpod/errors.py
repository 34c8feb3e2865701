"""RunPod's refusals as errors of the contract. PURE: no I/O, no clock.

Sources: RunPod's REST API 2.0.0 and public recordings of its answers. REST errors are RFC 9457 problems; the status
tells most apart. A create without capacity is a plain 400, and only its words say so. GraphQL errors have words only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
from providers._answers import Answer, unclear

RUNPOD = ProviderName("runpod")
RETIRED = "RunPod has retired this API: a newer release of meshd is needed"
NO_CAPACITY_WORDS = re.compile(
    r"no longer any instances|no instances|capacity|not available|unavailable|out of stock|could not be placed", re.I
)
_LIMITED = re.compile(r"\bpool\b|spend(ing)? limit|quota", re.I)
_BY_STATUS: dict[int, type[ProviderError]] = {409: Transient, 408: Transient, 425: Transient}
_SECRET_LOOKING = re.compile(r"[A-Za-z0-9+/=_-]{40,}")
_GRAPHQL_KINDS: tuple[tuple[re.Pattern[str], type[ProviderError]], ...] = (
    (re.compile(r"balance|insufficient fund|not enough credit|add funds|payment", re.I), AuthFailed),
    (re.compile(r"unauthor|not authenticated|forbidden|permission|access denied|error code: 1010", re.I), AuthFailed),
    (re.compile(r"too many requests|rate.?limit|error code: 1015", re.I), RateLimited),
    (re.compile(r"spend(ing)? limit|quota|maximum number of", re.I), QuotaExceeded),
    (NO_CAPACITY_WORDS, NoCapacity),
    (re.compile(r"not have the resources|\bbid\b.*(low|least|minimum)|(low|minimum)\b.*\bbid\b", re.I), NoCapacity),
    (re.compile(r"syntax error|cannot query|unknown argument|not defined by type|expected (value of )?type", re.I),
     InvalidRequest),
)  # fmt: skip


def clean(text: str) -> str:
    """A text of RunPod's without long words: a refusal may repeat the start command, which holds secrets."""
    return _SECRET_LOOKING.sub("[...]", text)


def to_error(answer: Answer, *, operation: str, changes: bool) -> ProviderError:
    """The contract's error for an error answer of the REST API.

    Args:
        answer: the answer.
        operation: the contract's name of the call.
        changes: whether the call may have made or ended a pod.
    """
    body = answer.body if isinstance(answer.body, dict) else {}
    problem = body if body.get("detail") or body.get("title") else None
    words = clean(_words(problem)) if problem else ""
    vendor_text = words or clean(answer.text)
    said = f"HTTP {answer.status}: {words or 'no problem document'}"
    if answer.status == 429:
        return RateLimited(
            said, retry_after_s=answer.retry_after_s, provider=RUNPOD, operation=operation, vendor_text=vendor_text
        )
    if answer.status == 410:
        return InvalidRequest(f"{RETIRED} ({said})", provider=RUNPOD, operation=operation, vendor_text=vendor_text)
    kind = _kind(answer.status, words, operation, changes)
    return kind(said, provider=RUNPOD, operation=operation, vendor_text=vendor_text)


def _words(problem: Mapping[str, Any]) -> str:
    errors = problem.get("errors")
    more = [str(error) for error in errors] if isinstance(errors, list) else []
    return " ".join([str(problem.get("detail") or problem.get("title")), *more])


def _kind(status: int, words: str, operation: str, changes: bool) -> type[ProviderError]:
    unclear_kind: type[ProviderError] = Uncertain if changes else Transient
    launch = operation == "launch"
    if status in (401, 402, 403):
        # 403 on create: "Your account cannot access the requested pool". Otherwise it is about the key or the account.
        return QuotaExceeded if launch and status != 401 and _LIMITED.search(words) else AuthFailed
    if status >= 500 or not words:
        return unclear_kind
    if status == 404:
        return NotFound if operation in ("get", "terminate") else InvalidRequest
    if status == 400 and launch:
        if _LIMITED.search(words):
            return QuotaExceeded
        return NoCapacity if NO_CAPACITY_WORDS.search(words) else InvalidRequest
    return _BY_STATUS.get(status, InvalidRequest)


def to_graphql_error(words: str, *, operation: str, changes: bool) -> ProviderError:
    """The contract's error for the text of a GraphQL error, which has no status and no reliable code.

    An unknown text is Uncertain for a call that changes something: RunPod says "Something went wrong" also about pods
    that it made.
    """
    said = clean(words)[:400]
    text = f"GraphQL: {said or 'no message'}"
    for pattern, kind in _GRAPHQL_KINDS:
        if pattern.search(said) and (operation == "launch" or kind not in (NoCapacity, QuotaExceeded)):
            return kind(text, provider=RUNPOD, operation=operation, vendor_text=said)
    return unclear(text, changes=changes, provider=RUNPOD, operation=operation, vendor_text=said)
