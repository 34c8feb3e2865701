"""Compute Engine's refusals as errors of the contract."""

from __future__ import annotations

from typing import Any

import pytest

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
from providers._answers import Answer, ErrorAnswer
from providers.gce.errors import refusal_of_answer, refusal_of_operation, to_error

CODES: list[tuple[str, int, str, type[ProviderError]]] = [
    *(
        (code, 503, "words", NoCapacity)
        for code in (
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "RESOURCE_POOL_EXHAUSTED",
            "REGION_RESOURCE_POOL_EXHAUSTED",
            "GPU_STOCKOUT",
            "insufficientCapacity",
            "UNSUPPORTED_OPERATION",
            "VM_MIN_COUNT_NOT_REACHED",
        )
    ),
    ("QUOTA_EXCEEDED", 403, "Quota 'NVIDIA_L4_GPUS' exceeded.", QuotaExceeded),
    ("quotaExceeded", 403, "words", QuotaExceeded),
    ("rateLimitExceeded", 403, "words", RateLimited),
    ("RESOURCE_OPERATION_RATE_EXCEEDED", 400, "words", RateLimited),
    ("something", 429, "words", RateLimited),
    ("RESOURCE_NOT_READY", 400, "words", Transient),
    ("resourceInUseByAnotherResource", 400, "words", Transient),
    ("alreadyExists", 409, "words", InvalidRequest),
    ("invalid", 400, "Invalid value for field 'resource.name'", InvalidRequest),
    ("INVALID_FIELD_VALUE", 400, "words", InvalidRequest),
    ("INVALID_USAGE", 400, "words", InvalidRequest),
    ("badRequest", 400, "words", InvalidRequest),
    ("something", 400, "words", InvalidRequest),
    ("authError", 401, "words", AuthFailed),
    ("something", 401, "words", AuthFailed),
    ("forbidden", 403, "words", AuthFailed),
    ("accessNotConfigured", 403, "words", AuthFailed),
    ("IAM_PERMISSION_DENIED", 403, "words", AuthFailed),
    ("BILLING_DISABLED", 403, "words", AuthFailed),
]


@pytest.mark.parametrize(("code", "status", "words", "kind"), CODES)
@pytest.mark.parametrize("operation", ["launch", "list"])
def test_codes(code: str, status: int, words: str, kind: type[ProviderError], operation: str) -> None:
    error = to_error(ErrorAnswer(code, status, words), operation=operation, changes=operation == "launch")
    assert type(error) is kind
    assert error.vendor_text == f"{code}: {words}"
    assert (error.provider, error.operation) == ("gce", operation)


@pytest.mark.parametrize("code", ["backendError", "internalError", "500", "502", "503", "INTERNAL_ERROR", "0"])
def test_unknown_errors_make_a_change_uncertain(code: str) -> None:
    for status in (500, 502, 503, 0):
        assert type(to_error(ErrorAnswer(code, status, ""), operation="launch", changes=True)) is Uncertain
        assert type(to_error(ErrorAnswer(code, status, ""), operation="list", changes=False)) is Transient


@pytest.mark.parametrize(
    ("operation", "message", "kind"),
    [
        ("get", "The resource 'projects/p/zones/z/instances/x' was not found", NotFound),
        ("terminate", "The resource 'projects/p/zones/z/instances/x' was not found", NotFound),
        ("launch", "The resource 'projects/p/zones/z/machineTypes/a3-highgpu-8g' was not found", NoCapacity),
        ("launch", "The resource 'projects/p/zones/z' was not found", NoCapacity),
        ("launch", "The resource 'projects/p/global/images/family/x' was not found", InvalidRequest),
        ("launch", "The resource 'projects/p/global/networks/x' was not found", InvalidRequest),
        ("list", "The resource 'projects/p' was not found", InvalidRequest),
    ],
)
def test_not_found_depends_on_what_is_missing(operation: str, message: str, kind: type[ProviderError]) -> None:
    for code in ("notFound", "RESOURCE_NOT_FOUND"):
        assert type(to_error(ErrorAnswer(code, 404, message), operation=operation, changes=False)) is kind


def test_a_type_that_the_zone_lacks_is_no_capacity() -> None:
    words = "Invalid value for field 'resource.machineType': Machine type with name 'a4-highgpu-8g' does not exist"
    assert type(to_error(ErrorAnswer("invalid", 400, words), operation="launch", changes=True)) is NoCapacity


def test_the_projects_quota_is_named() -> None:
    error = to_error(
        ErrorAnswer("QUOTA_EXCEEDED", 403, "Quota 'GPUS_ALL_REGIONS' exceeded."), operation="launch", changes=True
    )
    assert error.text.startswith(error.vendor_text) and "whole project" in error.text
    assert error.vendor_text == "QUOTA_EXCEEDED: Quota 'GPUS_ALL_REGIONS' exceeded."


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"error": {"errors": [{"reason": "notFound"}], "message": "m", "code": 404}}, "notFound", "m"),
        ({"error": {"status": "PERMISSION_DENIED", "message": "m"}}, "PERMISSION_DENIED", "m"),
        ({"error": {"message": "m", "details": [{"reason": "SERVICE_DISABLED"}]}}, "SERVICE_DISABLED", "m"),
        (
            {"error": {"errors": [{"reason": "other"}], "message": "m", "details": [{"reason": "BILLING_DISABLED"}]}},
            "BILLING_DISABLED",
            "m",
        ),
        ({"error": {"message": "m"}}, "403", "m"),
        ({"error": "text"}, "403", "shown"),
        (["list"], "403", "shown"),
        (None, "403", "shown"),
    ],
)
def test_refusals_in_answers(body: Any, code: str, message: str) -> None:
    assert refusal_of_answer(Answer(403, body, "shown", 7.0)) == ErrorAnswer(code, 403, message, 7.0)


def operation(status: str = "DONE", *codes: str, **more: Any) -> dict[str, Any]:
    error = {"error": {"errors": [{"code": code, "message": f"{code}!"} for code in codes]}} if codes else {}
    return {"operationType": "insert", "status": status, **error, **more}


def test_refusals_in_operations() -> None:
    assert refusal_of_operation(operation()) is None
    assert refusal_of_operation(operation("RUNNING")) is None
    assert refusal_of_operation(operation("RUNNING", "QUOTA_EXCEEDED")) is None
    assert refusal_of_operation({}) is None
    # An error counts whatever the HTTP status is; a known code comes before others.
    assert refusal_of_operation(operation("DONE", "VM_ODD", "GPU_STOCKOUT")) == ErrorAnswer(
        "GPU_STOCKOUT", 0, "GPU_STOCKOUT!"
    )
    assert refusal_of_operation(operation("DONE", "VM_ODD", httpErrorStatusCode=503)) == ErrorAnswer(
        "VM_ODD", 503, "VM_ODD!"
    )
    late = refusal_of_operation(operation(httpErrorStatusCode=400, httpErrorMessage="BAD REQUEST"))
    assert late == ErrorAnswer("400", 400, "BAD REQUEST")
