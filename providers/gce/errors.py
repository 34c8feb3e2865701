"""Compute Engine's refusals as errors of the contract. PURE: no I/O, no clock.

A refusal comes as an HTTP error with a `reason` in camelCase, or later, in the operation that a successful call
started, with a `code` in capitals. A lack of capacity nearly always shows in the operation.

Sources: the Compute API's error reference and rate quotas, and errors that SkyPilot and dstack handle.
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
from providers._answers import Answer, ErrorAnswer

GCE = ProviderName("gce")
TAKEN = ("alreadyExists", "RESOURCE_ALREADY_EXISTS")
NOT_READY = (
    "resourceNotReady",
    "RESOURCE_NOT_READY",
    "resourceInUseByAnotherResource",
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
)

_CODES: dict[str, type[ProviderError]] = {
    **dict.fromkeys(
        (
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "RESOURCE_POOL_EXHAUSTED",
            "REGION_RESOURCE_POOL_EXHAUSTED",
            "GPU_STOCKOUT",
            "insufficientCapacity",
            "VM_MIN_COUNT_NOT_REACHED",
            "UNSUPPORTED_OPERATION",  # seen when Google preempts a spot machine while it is created
        ),
        NoCapacity,
    ),
    **dict.fromkeys(("QUOTA_EXCEEDED", "quotaExceeded", "limitExceeded"), QuotaExceeded),
    **dict.fromkeys(
        (
            "rateLimitExceeded",
            "userRateLimitExceeded",
            "RATE_LIMIT_EXCEEDED",
            "RESOURCE_OPERATION_RATE_EXCEEDED",
            "resourceOperationRateExceeded",
        ),
        RateLimited,
    ),
    **dict.fromkeys(NOT_READY, Transient),
    **dict.fromkeys(TAKEN, InvalidRequest),
    **dict.fromkeys(("notFound", "RESOURCE_NOT_FOUND"), NotFound),
    **dict.fromkeys(("invalid", "badRequest", "INVALID_FIELD_VALUE", "INVALID_USAGE", "required"), InvalidRequest),
    **dict.fromkeys(
        (
            "forbidden",
            "accessNotConfigured",
            "authError",
            "SERVICE_DISABLED",
            "IAM_PERMISSION_DENIED",
            "PERMISSION_DENIED",
            "BILLING_DISABLED",
            "billingNotEnabled",
        ),
        AuthFailed,
    ),
}
IMAGE_PERMISSION = "compute.images.useReadOnly"
"""Without it machines boot from Google's own images only."""
_NO_SUCH_TYPE_HERE = re.compile(
    r"machine type .*(does not exist|not available|not found|not supported)|/(machineTypes|acceleratorTypes)/", re.I
)
_NAMED_BY_US = re.compile(r"/(images|networks|subnetworks|serviceAccounts|diskTypes|reservations)/", re.I)
_WHOLE_PROJECT = "GPUS_ALL_REGIONS"


def refusal_of_answer(answer: Answer) -> ErrorAnswer:
    """The refusal in an HTTP error; the answer's text when it is not an error of Google's API."""
    detail = answer.body.get("error") if isinstance(answer.body, dict) else None
    if not isinstance(detail, dict):
        return ErrorAnswer(str(answer.status), answer.status, answer.text, answer.retry_after_s)
    rows = detail.get("errors") or ()
    reason = next((str(row["reason"]) for row in rows if isinstance(row, dict) and row.get("reason")), "")
    info = next((str(row["reason"]) for row in detail.get("details") or () if row.get("reason")), "")
    code = info if info in _CODES and reason not in _CODES else reason or info
    code = code or str(detail.get("status") or answer.status)
    return ErrorAnswer(code, answer.status, str(detail.get("message") or answer.text), answer.retry_after_s)


def refusal_of_operation(operation: Mapping[str, Any]) -> ErrorAnswer | None:
    """The refusal in an operation; None when it has not ended, or succeeded.

    A DONE operation with an error has failed, whatever its HTTP status was.
    """
    rows = (operation.get("error") or {}).get("errors") or ()
    if operation.get("status") != "DONE" or (not rows and not operation.get("httpErrorStatusCode")):
        return None
    first = next((row for row in rows if row.get("code") in _CODES), rows[0] if rows else {})
    status = int(operation.get("httpErrorStatusCode") or 0)
    words = str(first.get("message") or operation.get("httpErrorMessage") or "")
    return ErrorAnswer(str(first.get("code") or status), status, words)


def to_error(refusal: ErrorAnswer, *, operation: str, changes: bool) -> ProviderError:
    """The contract's error for a refusal.

    Args:
        refusal: Google's answer.
        operation: the contract's name of the call.
        changes: whether the call may have made or ended a machine; an unknown 5xx is then Uncertain.
    """
    said = f"{refusal.code}: {refusal.message}"
    kind = _kind(refusal, operation, changes)
    if kind is RateLimited:
        return RateLimited(said, retry_after_s=refusal.retry_after_s, provider=GCE, operation=operation)
    text = said
    if kind is QuotaExceeded and _WHOLE_PROJECT in refusal.message:
        text += f" ({_WHOLE_PROJECT} is a quota of the whole project: other regions do not help)"
    return kind(text, provider=GCE, operation=operation, vendor_text=said)


def refusal_of_image(error: AuthFailed, image: str) -> ProviderError:
    """The error where the credential may make machines, but none from this baked image: others need not wait."""
    if not image or IMAGE_PERMISSION not in error.vendor_text:
        return error
    text = f"the credential lacks {IMAGE_PERMISSION}, to be granted to its account in the project: {error.vendor_text}"
    return InvalidRequest(text, provider=GCE, operation="launch", vendor_text=text)


def _kind(refusal: ErrorAnswer, operation: str, changes: bool) -> type[ProviderError]:
    kind = _CODES.get(refusal.code)
    if (
        operation == "launch"
        and kind in (NotFound, InvalidRequest, None)
        and _NO_SUCH_TYPE_HERE.search(refusal.message)
    ):
        return NoCapacity
    if kind is NotFound:
        return _not_found(refusal, operation)
    if kind is not None:
        return kind
    if refusal.status == 429:
        return RateLimited
    if refusal.status >= 500 or refusal.status < 400:
        return Uncertain if changes else Transient
    return AuthFailed if refusal.status in (401, 403) else InvalidRequest


def _not_found(refusal: ErrorAnswer, operation: str) -> type[ProviderError]:
    """The error for "not found", which depends on what is missing: on a create, something that the request names."""
    if operation == "launch":
        return InvalidRequest if _NAMED_BY_US.search(refusal.message) else NoCapacity
    return NotFound if operation in ("get", "terminate", "console", "delete_image") else InvalidRequest
