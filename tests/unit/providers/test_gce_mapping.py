"""Compute Engine's words and the contract's."""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from meshd.errors import (
    AuthFailed,
    ConfigError,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
    Uncertain,
)
from meshd.price_list import Pair, PriceList
from meshd.provider_api import InstanceState, LaunchRequest, Offer, PriceSource, ProviderName
from providers._answers import Answer, Refusal
from providers._prices import Prices, shipped
from providers._settings import parse
from providers.gce.body import IMAGES, insert_body
from providers.gce.errors import refusal_of_answer, refusal_of_operation, to_error
from providers.gce.keys import key_info
from providers.gce.mapping import (
    Verdict,
    cluster_filter,
    is_granted,
    is_ours,
    preempted,
    request_id,
    split_id,
    story_of,
    to_instance,
    to_labels,
    to_state,
    type_of,
)
from providers.gce.settings import GceSettings
from providers.gce.shapes import (
    by_zone,
    name_filter,
    price_of,
    to_gpu,
    to_machine_type,
    to_offers,
    usable_types,
)

ZONE = "us-central1-a"
GCE = ProviderName("gce")
OFFER = Offer(GCE, "us-central1", ZONE, "a3-highgpu-1g", "h100-sxm", 1, 80, 26, 239616, 3.35, spot=True)
CPU = Offer(GCE, "us-central1", ZONE, "e2-standard-4", "", 0, 0, 4, 16384, 0.13)

# --- errors

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
    error = to_error(Refusal(code, status, words), operation=operation, changes=operation == "launch")
    assert type(error) is kind
    assert error.vendor_text == f"{code}: {words}"
    assert (error.provider, error.operation) == ("gce", operation)


@pytest.mark.parametrize("code", ["backendError", "internalError", "500", "502", "503", "INTERNAL_ERROR", "0"])
def test_what_is_not_known_leaves_a_change_in_doubt(code: str) -> None:
    for status in (500, 502, 503, 0):
        assert type(to_error(Refusal(code, status, ""), operation="launch", changes=True)) is Uncertain
        assert type(to_error(Refusal(code, status, ""), operation="list", changes=False)) is Transient


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
def test_what_is_not_found_decides(operation: str, message: str, kind: type[ProviderError]) -> None:
    for code in ("notFound", "RESOURCE_NOT_FOUND"):
        assert type(to_error(Refusal(code, 404, message), operation=operation, changes=False)) is kind


def test_a_type_that_the_zone_has_not_is_no_fault_of_the_request() -> None:
    words = "Invalid value for field 'resource.machineType': Machine type with name 'a4-highgpu-8g' does not exist"
    assert type(to_error(Refusal("invalid", 400, words), operation="launch", changes=True)) is NoCapacity


def test_the_projects_quota_is_told_as_such() -> None:
    error = to_error(
        Refusal("QUOTA_EXCEEDED", 403, "Quota 'GPUS_ALL_REGIONS' exceeded."), operation="launch", changes=True
    )
    assert "the whole project's quota" in error.text
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
    assert refusal_of_answer(Answer(403, body, "shown", 7.0)) == Refusal(code, 403, message, 7.0)


def operation(status: str = "DONE", *codes: str, **more: Any) -> dict[str, Any]:
    error = {"error": {"errors": [{"code": code, "message": f"{code}!"} for code in codes]}} if codes else {}
    return {"operationType": "insert", "status": status, **error, **more}


def test_refusals_in_operations() -> None:
    assert refusal_of_operation(operation()) is None
    assert refusal_of_operation(operation("RUNNING")) is None
    assert refusal_of_operation(operation("RUNNING", "QUOTA_EXCEEDED")) is None
    assert refusal_of_operation({}) is None
    # An error counts whatever the HTTP status says, and a known code before others.
    assert refusal_of_operation(operation("DONE", "VM_ODD", "GPU_STOCKOUT")) == Refusal(
        "GPU_STOCKOUT", 0, "GPU_STOCKOUT!"
    )
    assert refusal_of_operation(operation("DONE", "VM_ODD", httpErrorStatusCode=503)) == Refusal(
        "VM_ODD", 503, "VM_ODD!"
    )
    late = refusal_of_operation(operation(httpErrorStatusCode=400, httpErrorMessage="BAD REQUEST"))
    assert late == Refusal("400", 400, "BAD REQUEST")


# --- machines


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PENDING", InstanceState.BOOTING),
        ("PROVISIONING", InstanceState.BOOTING),
        ("STAGING", InstanceState.BOOTING),
        ("RUNNING", InstanceState.RUNNING),
        ("REPAIRING", InstanceState.FAILED),
        ("PENDING_STOP", InstanceState.TERMINATING),
        ("STOPPING", InstanceState.TERMINATING),
        ("DEPROVISIONING", InstanceState.TERMINATING),
        ("STOPPED", InstanceState.STOPPED),
        ("TERMINATED", InstanceState.STOPPED),
        ("SUSPENDING", InstanceState.STOPPING),
        ("SUSPENDED", InstanceState.STOPPED),
        ("DREAMING", InstanceState.UNKNOWN),
        ("", InstanceState.UNKNOWN),
    ],
)
def test_states(status: str, state: InstanceState) -> None:
    assert to_state(status) is state


@given(st.text(max_size=20))
def test_nothing_that_google_shows_is_gone(status: str) -> None:
    assert to_state(status) is not InstanceState.GONE


def test_capacity_is_settled_from_staging_on() -> None:
    waiting = [
        status for status in ("PENDING", "PROVISIONING", "STAGING", "RUNNING") if not is_granted({"status": status})
    ]
    assert waiting == ["PENDING", "PROVISIONING"]


def machine(**more: Any) -> dict[str, Any]:
    zone = f"https://www.googleapis.com/compute/v1/projects/p/zones/{ZONE}"
    return {
        "id": "4711",
        "name": "lab-h100-1-abc",
        "zone": zone,
        "machineType": f"{zone}/machineTypes/a3-highgpu-1g",
        "status": "RUNNING",
        "creationTimestamp": "2026-03-01T04:00:00.000-08:00",
        "labels": {"meshd-cluster": "lab"},
        "scheduling": {"provisioningModel": "SPOT"},
        "networkInterfaces": [{"networkIP": "10.0.0.2", "accessConfigs": [{"natIP": "192.0.2.1"}]}],
        **more,
    }


def test_instance() -> None:
    found = to_instance(machine(), 1.5)
    assert (found.id, found.token, found.region) == (f"{ZONE}/lab-h100-1-abc", "lab-h100-1-abc", "us-central1")
    assert (found.public_ip, found.private_ip, found.spot) == ("192.0.2.1", "10.0.0.2", True)
    assert found.launched_at == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert (found.instance_type, found.usd_per_hour, found.reason) == ("a3-highgpu-1g", 1.5, "")
    assert split_id(found.id, "get") == (ZONE, "lab-h100-1-abc")


def test_instance_of_few_words() -> None:
    found = to_instance({"name": "x", "zone": ZONE, "status": "TERMINATED", "statusMessage": "Out of money"})
    assert (found.state, found.reason, found.public_ip) == (InstanceState.STOPPED, "Out of money", "")
    assert (found.launched_at, found.spot) == (None, False)
    assert to_instance(machine(creationTimestamp="yesterday")).launched_at is None


@pytest.mark.parametrize("instance_id", ["4711", "/x", "zone/", ""])
def test_foreign_ids_are_refused(instance_id: str) -> None:
    with pytest.raises(InvalidRequest):
        split_id(instance_id, "get")


def test_types_with_attached_gpus_have_a_name() -> None:
    card = {"acceleratorType": f"projects/p/zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 2}
    assert type_of({"machineType": "x/n1-standard-8", "guestAccelerators": [card]}) == "n1-standard-8+nvidia-tesla-t4x2"
    assert type_of({"machineType": "x/n1-standard-8"}) == "n1-standard-8"
    # Google also tells the GPUs that belong to a type.
    assert type_of({"machineType": "x/a2-highgpu-1g", "guestAccelerators": [card]}) == "a2-highgpu-1g"


def ended(kind: str, status: str = "DONE", at: str = "2", **more: Any) -> dict[str, Any]:
    return {"operationType": kind, "status": status, "insertTime": at, "user": "me@example.com", **more}


@pytest.mark.parametrize(
    ("operations", "verdict", "words"),
    [
        ([], Verdict.SILENT, ""),
        ([ended("insert", "RUNNING")], Verdict.BEING_MADE, ""),
        ([ended("insert")], Verdict.SILENT, ""),
        ([ended("setLabels")], Verdict.SILENT, ""),
        ([ended("insert", at="1"), ended("delete")], Verdict.ENDED, "delete by me@example.com"),
        ([ended("insert", at="1"), ended("delete", "RUNNING")], Verdict.SILENT, ""),
        (
            [ended("delete", at="3", error={"errors": [{"code": "RESOURCE_IN_USE"}]}), ended("insert", at="1")],
            Verdict.SILENT,
            "",
        ),
        (
            [ended("compute.instances.preempted", statusMessage="Instance was preempted."), ended("insert", at="1")],
            Verdict.ENDED,
            "compute.instances.preempted: Instance was preempted.",
        ),
        ([operation("DONE", "GPU_STOCKOUT")], Verdict.NEVER_MADE, "GPU_STOCKOUT: GPU_STOCKOUT!"),
    ],
)
def test_stories(operations: list[dict[str, Any]], verdict: Verdict, words: str) -> None:
    for rows in (operations, operations[::-1]):
        story = story_of(rows)
        assert (story.verdict, story.reason) == (verdict, words)


def test_preempted() -> None:
    assert preempted([ended("insert"), ended("compute.instances.preempted", "RUNNING")])
    assert not preempted([ended("insert"), ended("delete")])


def test_request_ids() -> None:
    first = request_id("lab-h100-1-abc")
    assert uuid.UUID(first).version == 5
    assert first == request_id("lab-h100-1-abc") != request_id("lab-h100-2-abc")


@given(st.dictionaries(st.text(max_size=80), st.text(max_size=80), max_size=5))
def test_labels_are_such_as_google_takes(tags: dict[str, str]) -> None:
    for key, value in to_labels(tags).items():
        assert re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key)
        assert re.fullmatch(r"[a-z0-9_-]{0,63}", value)


def test_labels() -> None:
    assert to_labels({"meshd-slot": "H100-1", "Team": "Höhere Physik", "9": "x"}) == {
        "meshd-slot": "h100-1",
        "team": "h-here-physik",
    }
    assert cluster_filter("Lab.One") == "labels.meshd-cluster=lab-one"
    assert is_ours(machine(), "lab") and not is_ours(machine(), "la") and not is_ours({"name": "lab-x"}, "lab")


# --- types and offers


@pytest.mark.parametrize(
    ("accelerator", "gpu", "memory_gib"),
    [
        ("nvidia-l4", "l4", 24),
        ("nvidia-tesla-t4", "t4", 16),
        ("nvidia-tesla-v100", "v100-sxm", 16),
        ("nvidia-tesla-a100", "a100-sxm", 40),
        ("nvidia-a100-80gb", "a100-sxm", 80),
        ("nvidia-h100-80gb", "h100-sxm", 80),
        ("nvidia-h100-mega-80gb", "h100-sxm", 80),
        ("nvidia-h200-141gb", "h200-sxm", 141),
        ("nvidia-b200", "b200", 180),
        ("nvidia-rtx-pro-6000", "rtx-pro-6000", 96),
        ("nvidia-z999-512gb", "z999", 512),
        ("nvidia-z999", "z999", 0),
    ],
)
def test_gpus(accelerator: str, gpu: str, memory_gib: int) -> None:
    assert to_gpu(accelerator) == (gpu, memory_gib)


def row(name: str = "a3-highgpu-8g", card: str = "nvidia-h100-80gb", count: int = 8, **more: Any) -> dict[str, Any]:
    cards = [{"guestAcceleratorType": card, "guestAcceleratorCount": count}] if card else []
    return {"name": name, "guestCpus": 208, "memoryMb": 1916928, "accelerators": cards, **more}


def test_machine_types() -> None:
    kind = to_machine_type(row(), ZONE)
    assert kind is not None
    assert (kind.accelerator, kind.gpus, kind.vcpus, kind.arch) == ("nvidia-h100-80gb", 8, 208, "x86_64")
    arm = to_machine_type(row("t2a-standard-4", "", architecture="ARM64"), ZONE)
    assert arm is not None and (arm.arch, arm.gpus) == ("arm64", 0)
    assert to_machine_type(row("ct6e-standard-4t", "ct6e"), ZONE) is None
    assert to_machine_type(row(card="nvidia-l4-vws"), ZONE) is None
    assert to_machine_type(row(deprecated={"state": "OBSOLETE"}), ZONE) is None
    assert to_machine_type(row(deprecated={"state": "DEPRECATED"}), ZONE) is not None


def table(**machines: Pair) -> Prices:
    named = {name.replace("_", "-"): pair for name, pair in machines.items()}
    usd = {"us-central1": {**named, "nvidia-tesla-t4": (0.5, None)}}
    return Prices(PriceList(as_of=datetime(2026, 1, 1, tzinfo=UTC), usd_per_hour=usd), lambda: None)


def test_offers() -> None:
    settings = GceSettings(attached_gpus=("n1-standard-8+nvidia-tesla-t4x2", "n1-standard-8+nvidia-tesla-t4x8"))
    rows = {
        f"zones/{ZONE}": {"machineTypes": [row(), row("n1-standard-8", "", 0), row("c3-standard-4", "", 0)]},
        "zones/europe-west4-b": {"machineTypes": [row()]},
        "zones/us-central1-f": {"warning": {"code": "NO_RESULTS_ON_PAGE"}},
        "regions/us-central1": {},
    }
    cards = {ZONE: [{"name": "nvidia-tesla-t4", "maximumCardsPerInstance": 4}]}
    kinds = usable_types(by_zone(rows, "machineTypes"), cards, settings)
    assert [(kind.name, kind.zone) for kind in kinds] == [
        ("a3-highgpu-8g", ZONE),
        ("n1-standard-8+nvidia-tesla-t4x2", ZONE),
    ]
    prices = table(a3_highgpu_8g=(88.0, 27.0), n1_standard_8=(0.4, 0.1))
    offers = to_offers(kinds, settings, prices, spot=True)
    assert [(offer.instance_type, offer.spot, offer.usd_per_hour) for offer in offers] == [
        ("a3-highgpu-8g", False, 88.0),
        ("a3-highgpu-8g", True, 27.0),
        ("n1-standard-8+nvidia-tesla-t4x2", False, 1.4),
    ]
    assert [offer.key for offer in offers][1] == f"gce/{ZONE}/a3-highgpu-8g/spot"
    assert {(offer.gpu, offer.gpus) for offer in offers} == {("h100-sxm", 8), ("t4", 2)}
    assert len(to_offers(kinds, settings, prices, spot=False)) == 2


def test_own_prices_come_first() -> None:
    settings = GceSettings(prices={"a3-highgpu-8g": 50}, spot_prices={"a4-highgpu-8g": 20})
    prices = table(a3_highgpu_8g=(88.0, 27.0))

    def usd(name: str, region: str, *, spot: bool) -> float | None:
        found = price_of(name, region, settings, prices, spot=spot)
        return found.usd_per_hour if found else None

    assert usd("a3-highgpu-8g", "us-central1", spot=False) == 50
    assert usd("a3-highgpu-8g", "us-central1", spot=True) == 27
    assert usd("a4-highgpu-8g", "mars-1", spot=True) == 20
    assert usd("a4-highgpu-8g", "mars-1", spot=False) is None
    own = price_of("a3-highgpu-8g", "us-central1", settings, prices, spot=False)
    assert own is not None and (own.as_of, own.source) == (None, PriceSource.SETTINGS)


def test_a_price_of_two_parts_is_as_old_as_the_older() -> None:
    fetched = PriceList(
        as_of=datetime(2026, 2, 1, tzinfo=UTC), usd_per_hour={"us-central1": {"nvidia-tesla-t4": (0.6, None)}}
    )
    prices = Prices(table(n1_standard_8=(0.4, 0.1)).shipped, lambda: fetched)
    both = price_of("n1-standard-8+nvidia-tesla-t4x2", "us-central1", GceSettings(), prices, spot=False)
    assert both is not None
    assert (both.usd_per_hour, both.as_of, both.source) == (
        1.6, datetime(2026, 1, 1, tzinfo=UTC), PriceSource.SHIPPED,
    )  # fmt: skip


def test_name_filter() -> None:
    settings = GceSettings(instance_types=("a3-*", "g2-standard-?"), attached_gpus=("n1-standard-8+nvidia-tesla-t4x1",))
    found = re.fullmatch(r'name eq "(.*)"', name_filter(settings))
    assert found is not None
    names = ("a3-highgpu-8g", "g2-standard-4", "g2-standard-48", "n1-standard-8", "xa3-y")
    taken = [name for name in names if re.fullmatch(found[1], name)]
    assert taken == ["a3-highgpu-8g", "g2-standard-4", "n1-standard-8"]


def test_shipped_prices() -> None:
    prices = shipped("providers.gce")
    assert prices.as_of.tzinfo is not None
    pairs = [pair for region in prices.usd_per_hour.values() for pair in region.values()]
    assert all(any(price is not None for price in pair) for pair in pairs)
    assert all(price < 200 for pair in pairs for price in pair if price is not None)
    for on_demand, spot in pairs:
        assert on_demand is None or spot is None or spot < on_demand
    assert prices.usd("us-central1", "a3-highgpu-1g", spot=False) is None
    assert prices.usd("us-central1", "a3-highgpu-1g", spot=True) is not None
    assert prices.usd("us-central1", "nvidia-tesla-t4") == 0.35
    assert prices.usd("mars-1", "a3-highgpu-1g", spot=True) is None


# --- the create call


def body(offer: Offer = OFFER, **settings: Any) -> dict[str, Any]:
    launch = LaunchRequest("lab-h100-1-abc", "Lab", offer, "#!/bin/sh", {"meshd-slot": "h100-1"})
    return insert_body(launch, GceSettings(**settings))


def test_body() -> None:
    found = body(labels={"team": "physics", "meshd-cluster": "not-ours-to-change"})
    assert found["name"] == "lab-h100-1-abc"
    assert found["machineType"] == f"zones/{ZONE}/machineTypes/a3-highgpu-1g"
    assert found["metadata"] == {"items": [{"key": "startup-script", "value": "#!/bin/sh"}]}
    assert found["labels"] == {
        "meshd-cluster": "lab",
        "meshd-machine": "lab-h100-1-abc",
        "meshd-slot": "h100-1",
        "team": "physics",
    }
    (disk,) = found["disks"]
    assert disk["autoDelete"] is True
    assert disk["initializeParams"]["sourceImage"] == IMAGES["gpu/x86_64"]
    assert disk["initializeParams"]["diskType"] == f"zones/{ZONE}/diskTypes/pd-balanced"
    assert found["networkInterfaces"][0]["network"] == "global/networks/default"
    assert not {"guestAccelerators", "serviceAccounts", "tags"} & set(found)


def test_body_with_everything() -> None:
    offer = Offer(GCE, "us-central1", ZONE, "n1-standard-8+nvidia-tesla-t4x2", "t4", 2, 16, 8, 30720, 1.0)
    found = body(
        offer,
        subnetworks={"us-central1": "mesh"},
        public_ip=False,
        nic_type="",
        network_tags=("mesh",),
        ssh_keys=("root:ssh-ed25519 AAAA me", "joe:ssh-rsa BBBB"),
        machine_service_account="nodes@p.iam.gserviceaccount.com",
        metadata={"enable-oslogin": "FALSE"},
        images={"gpu/x86_64": "projects/p/global/images/mine"},
        disk_type="pd-ssd",
        disk_gib=200,
    )
    assert found["machineType"].endswith("/n1-standard-8")
    assert found["guestAccelerators"] == [
        {"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 2}
    ]
    assert found["networkInterfaces"] == [{"subnetwork": "regions/us-central1/subnetworks/mesh"}]
    metadata = {item["key"]: item["value"] for item in found["metadata"]["items"]}
    assert metadata["ssh-keys"] == "root:ssh-ed25519 AAAA me\njoe:ssh-rsa BBBB"
    assert metadata["enable-oslogin"] == "FALSE"
    made = found["disks"][0]["initializeParams"]
    assert (made["sourceImage"], made["diskSizeGb"]) == ("projects/p/global/images/mine", "200")
    assert made["diskType"].endswith("/pd-ssd")
    assert found["serviceAccounts"][0]["email"] == "nodes@p.iam.gserviceaccount.com"
    assert found["tags"] == {"items": ["mesh"]}


@pytest.mark.parametrize(
    ("offer", "max_run_s", "expected"),
    [
        (
            OFFER,
            None,
            {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE", "instanceTerminationAction": "DELETE"},
        ),
        (CPU, None, {"provisioningModel": "STANDARD"}),
        (
            CPU,
            3600,
            {
                "provisioningModel": "STANDARD",
                "maxRunDuration": {"seconds": "3600"},
                "instanceTerminationAction": "DELETE",
            },
        ),
    ],
)
def test_scheduling(offer: Offer, max_run_s: int | None, expected: dict[str, Any]) -> None:
    assert body(offer, max_run_s=max_run_s)["scheduling"] == {**expected, "automaticRestart": False}


@pytest.mark.parametrize(
    ("kind", "gpus", "arch", "disk", "image"),
    [
        ("a3-ultragpu-8g", 8, "x86_64", "hyperdisk-balanced", "gpu/x86_64"),
        ("a4-highgpu-8g", 8, "x86_64", "hyperdisk-balanced", "gpu/x86_64"),
        ("g2-standard-4", 1, "x86_64", "pd-balanced", "gpu/x86_64"),
        ("a4x-highgpu-4g", 4, "arm64", "hyperdisk-balanced", "gpu/arm64"),
        ("c4a-standard-4", 0, "arm64", "hyperdisk-balanced", "cpu/arm64"),
        ("e2-standard-4", 0, "x86_64", "pd-balanced", "cpu/x86_64"),
    ],
)
def test_disk_and_image_fit_the_type(kind: str, gpus: int, arch: str, disk: str, image: str) -> None:
    offer = Offer(GCE, "us-central1", ZONE, kind, "b200" if gpus else "", gpus, 0, 8, 8192, 1.0, arch=arch)
    made = body(offer)["disks"][0]["initializeParams"]
    assert made["diskType"].rpartition("/")[2] == disk
    assert made["sourceImage"] == IMAGES[image]


# --- settings


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"zones": ["europe-west4-b"]}, "europe-west4-b lies in none of the regions"),
        ({"images": {"x86_64": "y"}}, "images: x86_64 is none of cpu/arm64"),
        ({"labels": {"Team": "x"}}, "labels: Team breaks Google's rule"),
        ({"ssh_keys": ["ssh-ed25519 AAAA"]}, "ssh_keys: a line is not user:public-key"),
        ({"metadata": {"startup-script": "x"}}, "metadata: startup-script is meshd's own"),
        ({"anonymous": True}, "anonymous needs api_endpoint"),
        ({"anonymous": True, "api_endpoint": "http://x", "service_account": "k"}, "anonymous or service_account"),
        ({"service_account": "k", "service_account_file": "/k"}, "service_account or service_account_file, not both"),
        ({"attached_gpus": ["g2-standard-4+nvidia-l4x1"]}, "attached_gpus.0"),
        ({"attached_gpus": ["n1-standard-8"]}, "attached_gpus.0"),
        ({"regions": []}, "regions"),
        ({"instance_types": ['a3-"']}, "instance_types: names have"),
        ({"api_endpoint": "compute.googleapis.com"}, "api_endpoint"),
        ({"max_run_s": 1}, "max_run_s"),
        ({"instance_type": "x"}, "instance_type: unknown key"),
    ],
)
def test_wrong_settings(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(GceSettings, table, "[providers.gce]")
    assert len(caught.value.problems) == 1
    assert problem in caught.value.problems[0]


KEY = {"type": "service_account", "client_email": "a@b", "private_key": "hush", "token_uri": "https://x"}


def test_keys() -> None:
    assert key_info(SecretStr(json.dumps(KEY)))["client_email"] == "a@b"
    for text in ("hush", "[]", json.dumps({**KEY, "type": "authorized_user"}), json.dumps({**KEY, "client_email": ""})):
        with pytest.raises(ConfigError) as caught:
            key_info(SecretStr(text))
        assert "hush" not in str(caught.value)
