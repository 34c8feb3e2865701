"""Compute Engine's machines."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.errors import InvalidRequest
from meshd.provider_api import InstanceState
from providers.gce.mapping import (
    AbsenceCause,
    cluster_filter,
    explain_absence,
    is_granted,
    is_ours,
    preempted,
    request_id,
    split_id,
    to_instance,
    to_labels,
    to_state,
    type_of,
)

ZONE = "us-central1-a"
STOCKOUT = {"code": "GPU_STOCKOUT", "message": "none left"}


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


def test_a_machine_has_capacity_from_staging_on() -> None:
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
    assert (found.public_ip, found.spot) == ("192.0.2.1", True)
    assert found.launched_at == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert (found.instance_type, found.usd_per_hour, found.reason) == ("a3-highgpu-1g", 1.5, "")
    assert split_id(found.id, "get") == (ZONE, "lab-h100-1-abc")


def test_sparse_instance() -> None:
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
    # Google also lists the GPUs that are part of a type.
    assert type_of({"machineType": "x/a2-highgpu-1g", "guestAccelerators": [card]}) == "a2-highgpu-1g"


def ended(kind: str, status: str = "DONE", at: str = "2", **more: Any) -> dict[str, Any]:
    return {"operationType": kind, "status": status, "insertTime": at, "user": "me@example.com", **more}


@pytest.mark.parametrize(
    ("operations", "cause", "words"),
    [
        ([], AbsenceCause.UNKNOWN, ""),
        ([ended("insert", "RUNNING")], AbsenceCause.BEING_MADE, ""),
        ([ended("insert")], AbsenceCause.UNKNOWN, ""),
        ([ended("setLabels")], AbsenceCause.UNKNOWN, ""),
        ([ended("insert", at="1"), ended("delete")], AbsenceCause.ENDED, "delete by me@example.com"),
        ([ended("insert", at="1"), ended("delete", "RUNNING")], AbsenceCause.UNKNOWN, ""),
        (
            [ended("delete", at="3", error={"errors": [{"code": "RESOURCE_IN_USE"}]}), ended("insert", at="1")],
            AbsenceCause.UNKNOWN,
            "",
        ),
        (
            [ended("compute.instances.preempted", statusMessage="Instance was preempted."), ended("insert", at="1")],
            AbsenceCause.ENDED,
            "compute.instances.preempted: Instance was preempted.",
        ),
        ([ended("insert", error={"errors": [STOCKOUT]})], AbsenceCause.NEVER_MADE, "GPU_STOCKOUT: none left"),
    ],
)
def test_causes_of_absence(operations: list[dict[str, Any]], cause: AbsenceCause, words: str) -> None:
    for rows in (operations, operations[::-1]):
        absence = explain_absence(rows)
        assert (absence.cause, absence.reason) == (cause, words)


def test_preempted() -> None:
    assert preempted([ended("insert"), ended("compute.instances.preempted", "RUNNING")])
    assert not preempted([ended("insert"), ended("delete")])


def test_request_ids() -> None:
    first = request_id("lab-h100-1-abc")
    assert uuid.UUID(first).version == 5
    assert first == request_id("lab-h100-1-abc") != request_id("lab-h100-2-abc")


@given(st.dictionaries(st.text(max_size=80), st.text(max_size=80), max_size=5))
def test_labels_are_valid_for_google(tags: dict[str, str]) -> None:
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
