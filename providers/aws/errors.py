"""EC2's refusals as errors of the contract, and what a denial of IAM says. PURE: no I/O, no clock.

Sources: the EC2 API reference (error codes), the IAM user guide (access-denied messages) and the STS reference
(DecodeAuthorizationMessage).
"""

from __future__ import annotations

import json
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
from providers._answers import ErrorAnswer

_NAMED = re.compile(r"not authorized to perform: ([a-z0-9-]+:[A-Za-z]+)(?: on resource: (\S+))?")
_ENCODED = re.compile(r"\s*Encoded authorization failure message: (\S+)")
_DENIALS = ("UnauthorizedOperation", "AccessDenied")

AWS = ProviderName("aws")
_NO_CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "UnfulfillableCapacity",
        "Unsupported",
        "InstanceTypeNotSupported",
        "SpotMaxPriceTooLow",
    }
)
_QUOTA = frozenset(
    {
        "VcpuLimitExceeded",
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "SnapshotLimitExceeded",
        "ConcurrentSnapshotLimitExceeded",
    }
)
_THROTTLED = frozenset(
    {"RequestLimitExceeded", "EC2ThrottledException", "Throttling", "ThrottlingException", "TooManyRequestsException"}
)
_AUTH = frozenset(
    {
        "AuthFailure",
        "UnauthorizedOperation",
        "OptInRequired",
        "PendingVerification",
        "Blocked",
        "ExpiredToken",
        "RequestExpired",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "AccessDenied",
        "AccessDeniedException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "IncompleteSignatureException",
        "ExpiredTokenException",
    }
)
_NOT_YET = frozenset({"IncorrectInstanceState", "IncorrectState", "InvalidSnapshot.InUse"})
TOKEN_TAKEN = "IdempotentParameterMismatch"  # noqa: S105  an error code
TOKEN_USED_UP = "IdempotentInstanceTerminated"  # noqa: S105  an error code
UNKNOWN_ID = "InvalidInstanceID.NotFound"
IMAGE_TAKEN = "InvalidAMIName.Duplicate"
_UNKNOWN_IMAGE = frozenset({"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable", "InvalidSnapshot.NotFound"})


def to_error(refusal: ErrorAnswer, *, operation: str, changes: bool) -> ProviderError:
    """The contract's error for a refusal.

    Args:
        refusal: EC2's answer.
        operation: the contract's name of the call.
        changes: whether the call may have made or ended a machine; an unknown 5xx is then Uncertain.
    """
    code = refusal.code
    text = f"{code}: {without_code(refusal.message)}"
    if code in _THROTTLED or refusal.status == 429:
        return RateLimited(text, retry_after_s=refusal.retry_after_s, provider=AWS, operation=operation)
    if code in _UNKNOWN_IMAGE and operation == "delete_image":
        return NotFound(text, provider=AWS, operation=operation)
    return _kind(code, refusal.status, changes)(text, provider=AWS, operation=operation)


def _kind(code: str, status: int, changes: bool) -> type[ProviderError]:
    tables: tuple[tuple[frozenset[str], type[ProviderError]], ...] = (
        (_NO_CAPACITY, NoCapacity),
        (_QUOTA, QuotaExceeded),
        (_AUTH, AuthFailed),
        (_NOT_YET, Transient),
        (frozenset({UNKNOWN_ID}), NotFound),
    )
    for codes, kind in tables:
        if code in codes:
            return kind
    if status >= 500 or status < 400:
        return Uncertain if changes else Transient
    return AuthFailed if status in (401, 403) else InvalidRequest


def is_denial(text: str) -> bool:
    """Whether an error says that a permission is missing, not that the credential as a whole is invalid."""
    return text.startswith(_DENIALS)


def encoded_in(message: str) -> str:
    """The encoded part of a message, for sts:DecodeAuthorizationMessage; "" when there is none."""
    found = _ENCODED.search(message)
    return found[1] if found else ""


def without_code(message: str) -> str:
    """The message without its encoded part, a kilobyte that nobody can read."""
    return _ENCODED.sub("", message)


def decoded(answer: str) -> str:
    """The answer of sts:DecodeAuthorizationMessage in the words of messages that are not encoded.

    Args:
        answer: the decoded message, a JSON document. For anything else the result is "".
    """
    try:
        document = json.loads(answer)
        context = document["context"]
        action, resource = str(context["action"]), str(context.get("resource", "*"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    why = "an explicit deny" if document.get("explicitDeny") else "no policy that allows it"
    return f"not authorized to perform: {action} on resource: {resource} because of {why}"


def missing_in(text: str, asked: str) -> str:
    """The action that a denial names, with its resource unless that is everything; `asked` when it names none."""
    found = _NAMED.search(text)
    if not found:
        return asked
    resource = (found[2] or "").rstrip(".")
    return found[1] if resource in ("", "*") else f"{found[1]} on {resource}"
