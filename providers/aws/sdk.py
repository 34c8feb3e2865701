"""How AWS's SDK is set up, and what its exceptions mean."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from botocore import exceptions
from botocore.exceptions import ResponseStreamingError
from botocore.loaders import Loader

from meshd.errors import AuthFailed, InvalidRequest, ProviderError, Transient, Uncertain
from providers._answers import Refusal
from providers.aws.errors import AWS
from providers.aws.mapping import INSTANCE_FIELDS

_NOT_SENT = (
    exceptions.EndpointConnectionError,
    exceptions.ConnectTimeoutError,
    exceptions.ProxyConnectionError,
    exceptions.SSLError,
)
_NO_KEY = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.ProfileNotFound,
    exceptions.TokenRetrievalError,
)
_WRONG = (exceptions.ParamValidationError, exceptions.NoRegionError, exceptions.InvalidRegionError)

ANSWER_MAX_B: Final = 64 * 1024 * 1024
"""A page of 1,000 instances is 3 MB."""
_PART_B: Final = 64 * 1024


def cap_answers(client: Any, most_b: int | None = None) -> None:
    """Have a client give up an answer that is larger than `most_b` bytes (ANSWER_MAX_B).

    The SDK has a hook for sending, and none for reading: so its own session sends, and the body is read here.
    """
    session = client._endpoint.http_session

    def send(request: Any, **_: Any) -> Any:
        limit_b = ANSWER_MAX_B if most_b is None else most_b
        request.stream_output = True  # else the session reads all of it at once
        response = session.send(request)
        parts, size_b = [], 0
        for part in response.raw.stream(_PART_B):
            size_b += len(part)
            if size_b > limit_b:
                response.raw.close()
                raise ResponseStreamingError(error=f"the answer is larger than {limit_b} bytes")
            parts.append(part)
        response._content = b"".join(parts)
        return response

    client.meta.events.register("before-send", send)


class ReducedModels(Loader):
    """The SDK's service descriptions, with only those fields of an instance that the adapter reads.

    The SDK looks for each field of the description in each entry of an answer: of 61 fields 9 are read, and without the
    others a listing takes half of the CPU.
    """

    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        """As the SDK's loader, which remembers what it returns."""
        model = super().load_service_model(service_name, type_name, api_version)
        if (service_name, type_name) == ("ec2", "service-2"):
            members = model["shapes"]["Instance"]["members"]
            for name in members.keys() - INSTANCE_FIELDS:
                del members[name]
        return model


@lru_cache(maxsize=1)
def models() -> Loader:
    """EC2's description takes a third of a second to read: once per process."""
    return ReducedModels()


def sdk_error(error: Exception, operation: str, changes: bool) -> ProviderError:
    """The contract's error for one of the SDK's.

    The SDK's own exception is not chained: it can hold the request, and with it the user data.
    """
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, exceptions.ParamValidationError):
        text = "the SDK refuses the request's shape (ParamValidationError)"
    kind: type[ProviderError] = Uncertain if changes else Transient
    if isinstance(error, _NOT_SENT):
        kind = Transient
    elif isinstance(error, _NO_KEY):
        kind = AuthFailed
    elif isinstance(error, _WRONG):
        kind = InvalidRequest
    return kind(text[:400], provider=AWS, operation=operation)


def refusal_of(error: exceptions.ClientError) -> Refusal:
    """The refusal in an error answer of AWS."""
    detail = error.response.get("Error", {})
    meta: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    wait_s: float | None = None
    with suppress(ValueError, TypeError):
        wait_s = float(meta.get("HTTPHeaders", {}).get("retry-after"))
    status = int(meta.get("HTTPStatusCode", 0))
    return Refusal(str(detail.get("Code", status)), status, str(detail.get("Message", "")), wait_s)
