"""Compute Engine's checks of the body of instances.insert."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from deploy.sandbox.clouds.gce_types import ACCELERATORS, TYPES, GceType
from meshd.contract.standin import ErrorResponse

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_HYPERDISK_ONLY = ("a3-ultragpu-", "a4-")
_VALUE_MAX_B = 256 * 1024
_METADATA_MAX_B = 512 * 1024
_BULK_MAX = 5000


def no(status: int, reason: str, message: str) -> ErrorResponse:
    """An error answer of Google, with its `reason`."""
    error = {"code": status, "message": message, "errors": [{"message": message, "domain": "global", "reason": reason}]}
    return ErrorResponse(status, {"error": error})


def metadata_of(body: dict[str, Any]) -> dict[str, str]:
    """The metadata of an instance by key."""
    items = (body.get("metadata") or {}).get("items") or ()
    return {str(item["key"]): str(item.get("value", "")) for item in items}


def cards_of(body: dict[str, Any], kind: GceType) -> tuple[str, int]:
    """Accelerator type and count, of the machine type or attached."""
    cards = body.get("guestAccelerators") or ()
    if cards:
        return str(cards[0].get("acceleratorType", "")).rpartition("/")[2], int(cards[0].get("acceleratorCount", 1))
    return kind.accelerator, kind.gpus


def checked(body: dict[str, Any], zone: str) -> GceType:
    """The machine type in a create request.

    Raises:
        ErrorResponse: the body is invalid.
    """
    wanted = str(body.get("machineType", "")).rpartition("/")[2]
    kind = TYPES.get(wanted)
    if kind is None or zone not in kind.zones:
        path = f"zones/{zone}/machineTypes/{wanted}"
        raise no(404, "notFound", f"The resource 'projects/sandbox/{path}' was not found")
    problem = _problem(body, kind)
    if problem:
        raise no(400, "invalid", f"Invalid value for field 'resource': {problem}")
    return kind


def bulk_checked(bulk: dict[str, Any], zone: str) -> GceType:
    """The machine type in a request for several machines in one zone.

    Raises:
        ErrorResponse: the body is invalid.
    """
    properties, names = bulk.get("instanceProperties") or {}, bulk.get("perInstanceProperties") or {}
    count, least = str(bulk.get("count", "")), str(bulk.get("minCount") or bulk.get("count", ""))
    if not count.isdigit() or not least.isdigit() or not 1 <= int(least) <= int(count) <= _BULK_MAX:
        raise no(400, "invalid", "Invalid value for field 'resource.count'.")
    if len(names) != int(count):
        raise no(400, "invalid", "perInstanceProperties must have as many names as count.")
    disks = [(disk.get("initializeParams") or {}).get("diskType", "") for disk in properties.get("disks") or ()]
    cards = [card.get("acceleratorType", "") for card in properties.get("guestAccelerators") or ()]
    if any("/" in name for name in (str(properties.get("machineType", "")), *disks, *cards)):
        raise no(400, "invalid", "Properties of several instances name types without a URL.")
    kinds = [checked(single_body(properties, name, zone), zone) for name in names]
    return kinds[0]


def single_body(properties: dict[str, Any], name: str, zone: str) -> dict[str, Any]:
    """The body that makes one of several machines alone."""
    return {**properties, "name": name, "machineType": f"zones/{zone}/machineTypes/{properties.get('machineType', '')}"}


def _problem(body: dict[str, Any], kind: GceType) -> str:
    problems = (
        _name_and_labels(body),
        _metadata(body),
        _disks(body, kind),
        _scheduling(body, kind),
        _accelerators(body, kind),
        "" if body.get("networkInterfaces") else "At least one network interface is required.",
    )
    return next((problem for problem in problems if problem), "")


def _name_and_labels(body: dict[str, Any]) -> str:
    if not _NAME.fullmatch(str(body.get("name", ""))):
        return "name does not match '[a-z]([-a-z0-9]{0,61}[a-z0-9])?'."
    return label_problem(body.get("labels") or {})


def label_problem(labels: Mapping[str, str]) -> str:
    """What is wrong with labels; "" for nothing."""
    if len(labels) > 64:
        return "more than 64 labels."
    bad = [key for key, value in labels.items() if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value)]
    return f"label {bad[0]} is invalid." if bad else ""


def _metadata(body: dict[str, Any]) -> str:
    sizes = [len(value.encode()) for value in metadata_of(body).values()]
    if any(size > _VALUE_MAX_B for size in sizes):
        return "a metadata value exceeds 262144 bytes."
    return "metadata exceeds 524288 bytes." if sum(sizes) > _METADATA_MAX_B else ""


def _disks(body: dict[str, Any], kind: GceType) -> str:
    boot = next((disk for disk in body.get("disks") or () if disk.get("boot")), None)
    if boot is None:
        return "A boot disk is required."
    made = boot.get("initializeParams") or {}
    if not str(made.get("sourceImage", "")).startswith(("projects/", "global/images/")):
        return "sourceImage is no image."
    disk_type = str(made.get("diskType", "")).rpartition("/")[2]
    if kind.name.startswith(_HYPERDISK_ONLY) and not disk_type.startswith("hyperdisk-"):
        return f"[{disk_type}] features are not compatible for creating instance of type {kind.name}."
    return ""


def _scheduling(body: dict[str, Any], kind: GceType) -> str:
    given = body.get("scheduling") or {}
    spot = given.get("provisioningModel") == "SPOT"
    if kind.spot_only and not spot:
        return f"machine type {kind.name} is rented with the provisioning models SPOT and FLEX_START only."
    if (cards_of(body, kind)[1] or spot) and given.get("onHostMaintenance") != "TERMINATE":
        return "instances with guest accelerators do not support live migration."
    if given.get("instanceTerminationAction") and not spot and "maxRunDuration" not in given:
        return "instanceTerminationAction needs the provisioning model SPOT or maxRunDuration."
    return "automatic restart is not for spot instances." if spot and given.get("automaticRestart") else ""


def _accelerators(body: dict[str, Any], kind: GceType) -> str:
    if not body.get("guestAccelerators"):
        return ""
    name, count = cards_of(body, kind)
    if not kind.name.startswith("n1-"):
        return f"GPUs cannot be attached to {kind.name}."
    known = ACCELERATORS.get(name)
    return "" if known is not None and 0 < count <= known.most else f"{count} of {name} cannot be attached."
