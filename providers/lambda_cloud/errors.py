"""Lambda's refusals as errors of the contract. PURE: no I/O, no clock.

Source: Lambda Cloud API 1.10.0. Errors are distinguished by their code alone; the text may change.
"""

from __future__ import annotations

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

LAMBDA = ProviderName("lambda")
_CODES: dict[str, type[ProviderError]] = {
    "instance-operations/launch/insufficient-capacity": NoCapacity,
    "instance-operations/launch/file-system-in-wrong-region": InvalidRequest,
    "global/quota-exceeded": QuotaExceeded,
    "global/invalid-parameters": InvalidRequest,
    "global/duplicate": InvalidRequest,
    "global/object-does-not-exist": NotFound,
    "global/not-found": NotFound,
    "global/invalid-api-key": AuthFailed,
    "global/account-inactive": AuthFailed,
    "global/invalid-address": AuthFailed,
    "global/forbidden": AuthFailed,
    "global/conflict": Transient,
}


def to_error(answer: Answer, *, operation: str, changes: bool) -> ProviderError:
    """The contract's error for an error answer.

    Args:
        answer: the answer.
        operation: the contract's name of the call.
        changes: whether the call may have made or ended a machine.
    """
    detail = answer.body.get("error") if isinstance(answer.body, dict) else None
    detail = detail if isinstance(detail, dict) else {}
    code = str(detail.get("code", ""))
    words = " ".join(str(detail[key]) for key in ("message", "suggestion") if detail.get(key))
    said = f"{code}: {words}" if code else f"HTTP {answer.status} without an error code"
    if answer.status == 429:
        return RateLimited(
            said, retry_after_s=answer.retry_after_s, provider=LAMBDA, operation=operation, vendor_text=answer.text
        )
    kind = _kind(answer.status, code, operation, changes)
    return kind(said, provider=LAMBDA, operation=operation, vendor_text=said if code else answer.text)


def _kind(status: int, code: str, operation: str, changes: bool) -> type[ProviderError]:
    unclear_kind: type[ProviderError] = Uncertain if changes else Transient
    if status >= 500 or code.startswith("provider/") or not code or code in ("global/internal-error", "global/unknown"):
        return AuthFailed if status in (401, 403) else unclear_kind
    kind = _CODES.get(code)
    if kind is NotFound and operation == "launch":
        return InvalidRequest  # something that the request names: the key, the image, the type
    if kind is not None:
        return kind
    return {401: AuthFailed, 403: AuthFailed, 404: NotFound, 409: Transient}.get(status, InvalidRequest)
