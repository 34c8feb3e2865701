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
from providers._answers import ErrorAnswer
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
    """Make a client reject answers of more than `most_b` bytes (default: ANSWER_MAX_B).

    The SDK reads an answer of any size and needs ten times as much memory to parse it. It has a hook before sending but
    none for reading, so the hook sends the request and reads the body.
    """
    session = client._endpoint.http_session

    def send(request: Any, **_: Any) -> Any:
        limit_b = ANSWER_MAX_B if most_b is None else most_b
        request.stream_output = True  # otherwise the session reads it all at once
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
    """The SDK's service descriptions, reduced to the fields of an instance that the adapter reads.

    The SDK looks up every field of the description in every instance of an answer. The adapter reads 9 of 61; without
    the others a list takes half the CPU time.
    """

    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        """Like the SDK's loader, which caches its results."""
        model = super().load_service_model(service_name, type_name, api_version)
        if (service_name, type_name) == ("ec2", "service-2"):
            members = model["shapes"]["Instance"]["members"]
            for name in members.keys() - INSTANCE_FIELDS:
                del members[name]
        return model


@lru_cache(maxsize=1)
def models() -> Loader:
    """The loader, one per process: reading EC2's description takes a third of a second."""
    return ReducedModels()


def sdk_error(error: Exception, operation: str, changes: bool) -> ProviderError:
    """The contract's error for an exception of the SDK.

    The SDK's exception is not chained, because it may contain the request with the user data.
    """
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, exceptions.ParamValidationError):
        text = "the SDK rejects the request (ParamValidationError)"
    kind: type[ProviderError] = Uncertain if changes else Transient
    if isinstance(error, _NOT_SENT):
        kind = Transient
    elif isinstance(error, _NO_KEY):
        kind = AuthFailed
    elif isinstance(error, _WRONG):
        kind = InvalidRequest
    return kind(text[:400], provider=AWS, operation=operation)


def refusal_of(error: exceptions.ClientError) -> ErrorAnswer:
    """The refusal in an error answer of AWS."""
    detail = error.response.get("Error", {})
    meta: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    wait_s: float | None = None
    with suppress(ValueError, TypeError):
        wait_s = float(meta.get("HTTPHeaders", {}).get("retry-after"))
    status = int(meta.get("HTTPStatusCode", 0))
    return ErrorAnswer(str(detail.get("Code", status)), status, str(detail.get("Message", "")), wait_s)
