"""Lambda's instances, offers and errors."""

from __future__ import annotations

from datetime import UTC, datetime
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
from meshd.provider_api import InstanceState, LaunchRequest, Offer, ProviderName
from providers._answers import Answer
from providers.lambda_cloud.errors import to_error
from providers.lambda_cloud.mapping import launch_body, only_key, terminate_blocked, to_state
from providers.lambda_cloud.offers import to_offers
from providers.lambda_cloud.settings import LambdaSettings

OFFER = Offer(ProviderName("lambda"), "us-east-1", "", "gpu_1x_a10", "a10", 1, 24, 30, 204800, 0.75)


@pytest.mark.parametrize(
    ("status", "code", "operation", "kind"),
    [
        (400, "instance-operations/launch/insufficient-capacity", "launch", NoCapacity),
        (400, "global/quota-exceeded", "launch", QuotaExceeded),
        (400, "global/invalid-parameters", "launch", InvalidRequest),
        (400, "instance-operations/launch/file-system-in-wrong-region", "launch", InvalidRequest),
        (400, "global/object-does-not-exist", "launch", InvalidRequest),
        (404, "global/object-does-not-exist", "get", NotFound),
        (404, "global/not-found", "get", NotFound),
        (404, "global/object-does-not-exist", "terminate", NotFound),
        (401, "global/invalid-api-key", "list", AuthFailed),
        (403, "global/account-inactive", "launch", AuthFailed),
        (403, "global/invalid-address", "launch", AuthFailed),
        (403, "global/forbidden", "list", AuthFailed),
        (403, "", "list", AuthFailed),
        (409, "global/conflict", "terminate", Transient),
        (400, "global/duplicate", "launch", InvalidRequest),
        (500, "global/internal-error", "launch", Uncertain),
        (500, "global/internal-error", "list", Transient),
        (503, "provider/internal-unavailable", "launch", Uncertain),
        (400, "provider/internal-unavailable", "launch", Uncertain),
        (400, "global/unknown", "terminate", Uncertain),
        (429, "", "launch", RateLimited),
        (429, "global/rate-limited", "list", RateLimited),
        (400, "something/new", "launch", InvalidRequest),
        (418, "", "launch", Uncertain),
    ],
)
def test_errors(status: int, code: str, operation: str, kind: type[ProviderError]) -> None:
    body = {"error": {"code": code, "message": "words"}} if code else None
    changes = operation in ("launch", "terminate")
    assert type(to_error(Answer(status, body, "", None), operation=operation, changes=changes)) is kind


@pytest.mark.parametrize("body", [None, [], "text", {"error": "text"}, {"error": None}, {}])
def test_odd_bodies(body: Any) -> None:
    assert type(to_error(Answer(502, body, "", None), operation="launch", changes=True)) is Uncertain
    assert type(to_error(Answer(502, body, "", None), operation="list", changes=False)) is Transient


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("booting", InstanceState.BOOTING),
        ("active", InstanceState.RUNNING),
        ("unhealthy", InstanceState.FAILED),
        ("terminating", InstanceState.TERMINATING),
        ("terminated", InstanceState.GONE),
        ("preempted", InstanceState.PREEMPTED),
        ("hibernating", InstanceState.UNKNOWN),
        ("", InstanceState.UNKNOWN),
    ],
)
def test_states(status: str, state: InstanceState) -> None:
    assert to_state(status) is state


def types(description: str, name: str, gpus: int, regions: list[str]) -> dict[str, Any]:
    specs = {"vcpus": 26, "memory_gib": 225, "storage_gib": 1, "gpus": gpus}
    kind = {
        "name": name,
        "description": f"{gpus}x {description}",
        "gpu_description": description,
        "price_cents_per_hour": 329,
        "specs": specs,
    }
    return {name: {"instance_type": kind, "regions_with_capacity_available": [{"name": r} for r in regions]}}


@pytest.mark.parametrize(
    ("description", "name", "gpu", "memory_gib", "arch"),
    [
        ("H100 (80 GB SXM5)", "gpu_1x_h100_sxm5", "h100-sxm", 80, "x86_64"),
        ("H100", "gpu_1x_h100_pcie", "h100-pcie", 0, "x86_64"),
        ("Tesla V100 (16 GB)", "gpu_8x_v100", "v100", 16, "x86_64"),
        ("GH200 (96 GB)", "gpu_1x_gh200", "gh200", 96, "arm64"),
    ],
)
def test_offers(description: str, name: str, gpu: str, memory_gib: int, arch: str) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    (offer,) = to_offers(types(description, name, 1, ["us-east-1"]), LambdaSettings(), at)
    assert (offer.gpu, offer.gpu_memory_gib, offer.arch) == (gpu, memory_gib, arch)
    assert (offer.usd_per_hour, offer.available, offer.memory_mib) == (3.29, True, 230400)


def test_offers_without_capacity() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    raw = types("A10 (24 GB PCIe)", "gpu_1x_a10", 1, ["us-west-1"])
    named = to_offers(raw, LambdaSettings(regions=("us-east-1", "us-west-1")), at)
    assert [(o.region, o.available) for o in named] == [("us-east-1", False), ("us-west-1", True)]
    assert to_offers(raw, LambdaSettings(instance_types=("gpu_8x_*",)), at) == []


def test_launch_body_keeps_to_the_alphabet_of_tags() -> None:
    launch = LaunchRequest("lab-a10-1-abc", "lab", OFFER, "#!/bin/sh", {"Big Key": "x", "fine": "v" * 200})
    body = launch_body(launch, LambdaSettings(), "key")
    tags = {tag["key"]: tag["value"] for tag in body["tags"]}
    assert tags == {"fine": "v" * 128, "meshd-cluster": "lab", "meshd-machine": "lab-a10-1-abc"}
    assert (body["name"], body["hostname"], body["ssh_key_names"]) == ("lab-a10-1-abc", "lab-a10-1-abc", ["key"])


def test_only_key() -> None:
    assert only_key([{"name": "mine"}]) == "mine"
    for keys in ([], [{"name": "a"}, {"name": "b"}]):
        with pytest.raises(InvalidRequest, match="ssh_key_name"):
            only_key(keys)


def test_terminate_blocked() -> None:
    assert terminate_blocked({}) == ""
    assert terminate_blocked({"actions": {"terminate": {"available": True}}}) == ""
    blocked = {"available": False, "reason_code": "vm-is-terminating"}
    assert terminate_blocked({"actions": {"terminate": blocked}}) == "vm-is-terminating"
