"""Compute Engine's machines, operations and create request. PURE: no I/O, no clock.

All input is JSON of the Compute API v1: camelCase, 64-bit numbers as text.

A machine's id is `zone/name`. It is known before Google answers, and later calls need nothing else.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from meshd.errors import InvalidRequest
from meshd.provider_api import (
    CLUSTER_TAG,
    GANG_TAG,
    MACHINE_TAG,
    GangRequest,
    Instance,
    InstanceId,
    InstanceState,
    LaunchRequest,
)
from providers._answers import utc_time
from providers.gce.errors import GCE, refusal_of_operation
from providers.gce.settings import ATTACHED, GceSettings

#: Default images: Ubuntu 24.04; for GPUs with NVIDIA's driver 580.
IMAGES = {
    "gpu/x86_64": "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580",
    "gpu/arm64": "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accelerator-2404-arm64-with-nvidia-580",
    "cpu/x86_64": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
    "cpu/arm64": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-arm64",
}
#: Machine families that boot only from Hyperdisk.
_HYPERDISK = ("a3-ultragpu-", "a4-", "a4x-", "g4-", "c4-", "c4a-", "c4d-", "n4-")
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"

PREEMPTED = "compute.instances.preempted"

_REQUESTS = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
_STATES = {
    "PENDING": InstanceState.BOOTING,
    "PROVISIONING": InstanceState.BOOTING,
    "STAGING": InstanceState.BOOTING,
    "RUNNING": InstanceState.RUNNING,
    "REPAIRING": InstanceState.FAILED,
    # Google shows STOPPING for a stop and a delete. meshd never stops machines, so it is a delete.
    "PENDING_STOP": InstanceState.TERMINATING,
    "STOPPING": InstanceState.TERMINATING,
    "DEPROVISIONING": InstanceState.TERMINATING,
    # A TERMINATED machine is off; its disk is kept and costs money. A deleted machine is not found.
    "TERMINATED": InstanceState.STOPPED,
    "STOPPED": InstanceState.STOPPED,
    "SUSPENDING": InstanceState.STOPPING,
    "SUSPENDED": InstanceState.STOPPED,
}
_NOT_YET_GRANTED = frozenset({"", "PENDING", "PROVISIONING"})
_NOT_IN_LABELS = re.compile(r"[^a-z0-9_-]")


def to_label(value: str) -> str:
    """A text as a valid label value: lower case, [a-z0-9_-], at most 63 characters."""
    return _NOT_IN_LABELS.sub("-", value.lower())[:63]


def to_labels(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as labels, without keys that do not begin with a letter."""
    pairs = {to_label(key): to_label(value) for key, value in tags.items()}
    return {key: value for key, value in sorted(pairs.items()) if key[:1].isalpha()}


def cluster_filter(cluster: str) -> str:
    """The filter of instances.aggregatedList that finds this cluster's machines."""
    return f"labels.{CLUSTER_TAG}={to_label(cluster)}"


def gang_filter(gang: str) -> str:
    """The filter of instances.aggregatedList that finds the machines of a gang."""
    return f"labels.{GANG_TAG}={gang_label(gang)}"


def gang_label(gang: str) -> str:
    """A gang's label: its id may be longer than a label, and have other characters."""
    return f"{to_label(gang.partition(':')[0])[:46]}-{hashlib.sha256(gang.encode()).hexdigest()[:16]}"


def is_ours(raw: Mapping[str, Any], cluster: str) -> bool:
    """Whether a machine carries this cluster's label."""
    return (raw.get("labels") or {}).get(CLUSTER_TAG) == to_label(cluster)


def request_id(token: str) -> str:
    """The requestId of a machine's create call. It depends on the name alone."""
    return str(uuid.uuid5(_REQUESTS, f"meshd:{token}"))


def to_id(zone: str, name: str) -> InstanceId:
    """The machine's id in meshd."""
    return InstanceId(f"{zone}/{name}")


def split_id(instance_id: str, operation: str) -> tuple[str, str]:
    """Zone and name.

    Raises:
        InvalidRequest: it is not an id of this adapter.
    """
    zone, _, name = instance_id.partition("/")
    if not zone or not name:
        raise InvalidRequest(f"{instance_id} is not zone/name", provider=GCE, operation=operation)
    return zone, name


def region_of(zone: str) -> str:
    """The region of a zone: its name without the last part."""
    return zone.rpartition("-")[0]


def last_part(url: object) -> str:
    """The last part of a URL or path: the resource's name."""
    return str(url or "").rpartition("/")[2]


def to_state(status: str) -> InstanceState:
    """The contract's state. A machine that Google still shows is never GONE."""
    return _STATES.get(status, InstanceState.UNKNOWN)


def is_granted(raw: Mapping[str, Any]) -> bool:
    """Whether the machine has capacity and quota. It has from STAGING on."""
    return str(raw.get("status", "")) not in _NOT_YET_GRANTED


def is_spot(raw: Mapping[str, Any]) -> bool:
    """Whether it is a spot machine; Google has two fields for that."""
    scheduling = raw.get("scheduling") or {}
    return scheduling.get("provisioningModel") == "SPOT" or bool(scheduling.get("preemptible"))


def type_of(raw: Mapping[str, Any]) -> str:
    """The machine type as in offers: for an N1 with attached GPUs, with the GPUs."""
    name = last_part(raw.get("machineType"))
    attached = raw.get("guestAccelerators") or ()
    if not name.startswith("n1-") or not attached:
        return name
    return f"{name}+{last_part(attached[0].get('acceleratorType'))}x{int(attached[0].get('acceleratorCount', 1))}"


def to_instance(raw: Mapping[str, Any], usd_per_hour: float | None = None) -> Instance:
    """The instance for an Instance of the Compute API."""
    zone, name, status = last_part(raw.get("zone")), str(raw["name"]), str(raw.get("status", ""))
    nic: Mapping[str, Any] = next(iter(raw.get("networkInterfaces") or ()), {})
    access: Mapping[str, Any] = next(iter(nic.get("accessConfigs") or ()), {})
    state = to_state(status)
    healthy = state in (InstanceState.BOOTING, InstanceState.RUNNING)
    return Instance(
        provider=GCE,
        id=to_id(zone, name),
        token=name,
        state=state,
        region=region_of(zone),
        instance_type=type_of(raw),
        public_ip=str(access.get("natIP") or ""),
        spot=is_spot(raw),
        launched_at=utc_time(raw.get("creationTimestamp")),
        usd_per_hour=usd_per_hour,
        reason="" if healthy else str(raw.get("statusMessage") or status),
        vendor_state=status,
    )


class AbsenceCause(StrEnum):
    """Why a machine is not found, according to the operations on it."""

    ENDED = "ended"
    NEVER_MADE = "never made"
    BEING_MADE = "being made"
    UNKNOWN = "silent"


@dataclass(frozen=True, slots=True)
class Absence:
    """The cause, and Google's text for it."""

    cause: AbsenceCause
    reason: str = ""


def explain_absence(operations: Iterable[Mapping[str, Any]]) -> Absence:
    """Why a machine is not found, from the operations on it in any order.

    Only a successful operation proves that the machine ended. Google keeps operations for about two weeks.
    """
    rows = sorted(operations, key=lambda row: str(row.get("insertTime", "")), reverse=True)
    ended = next((row for row in rows if _ends(row) and _succeeded(row)), None)
    if ended is not None:
        return Absence(AbsenceCause.ENDED, _end_words(ended))
    insert = next((row for row in rows if row.get("operationType") == "insert"), None)
    if insert is None:
        return Absence(AbsenceCause.UNKNOWN)
    refusal = refusal_of_operation(insert)
    if refusal is not None:
        return Absence(AbsenceCause.NEVER_MADE, f"{refusal.code}: {refusal.message}")
    return Absence(AbsenceCause.UNKNOWN if insert.get("status") == "DONE" else AbsenceCause.BEING_MADE)


def preempted(operations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether Google has preempted the machine, or is about to."""
    return any(row.get("operationType") == PREEMPTED for row in operations)


def _ends(row: Mapping[str, Any]) -> bool:
    return row.get("operationType") in ("delete", PREEMPTED)


def _succeeded(row: Mapping[str, Any]) -> bool:
    return row.get("status") == "DONE" and refusal_of_operation(row) is None


def _end_words(row: Mapping[str, Any]) -> str:
    kind, words = str(row["operationType"]), str(row.get("statusMessage") or "")
    user = "" if kind == PREEMPTED else str(row.get("user") or "")
    return f"{kind}{' by ' + user if user else ''}{': ' + words if words else ''}"


def gone(instance_id: str, absence: Absence) -> Instance:
    """A machine that has ended or was never made."""
    zone, _, name = instance_id.partition("/")
    return Instance(
        provider=GCE,
        id=InstanceId(instance_id),
        token=name,
        state=InstanceState.GONE,
        region=region_of(zone),
        reason=absence.reason,
        vendor_state=absence.cause.value,
    )


def image_of(settings: GceSettings, gpus: int, arch: str, image: str = "") -> str:
    """The source image of a machine. `image`: the name of a baked one, for where the settings name none."""
    kind = f"{'gpu' if gpus else 'cpu'}/{arch}"
    return settings.images.get(kind) or (f"global/images/{image}" if image else IMAGES[kind])


def insert_body(request: LaunchRequest, settings: GceSettings) -> dict[str, Any]:
    """The body of instances.insert.

    It names GPUs only when they are attached to an N1; other types include them. Google must not restart or move a
    machine: meshd replaces it.
    """
    tags = {**settings.labels, **request.tags, CLUSTER_TAG: request.cluster, MACHINE_TAG: request.token}
    return {"name": request.token, **_properties(request, settings, tags, f"zones/{request.offer.zone}/")}


def bulk_body(request: GangRequest, settings: GceSettings) -> dict[str, Any]:
    """The body of instances.bulkInsert: all machines, with these names, or none.

    Properties of several machines name types without their zone.
    """
    tags = {**settings.labels, **request.tags, CLUSTER_TAG: request.cluster, GANG_TAG: gang_label(request.id)}
    return {
        "count": str(len(request.tokens)),
        "minCount": str(len(request.tokens)),
        "perInstanceProperties": {token: {} for token in request.tokens},
        "instanceProperties": _properties(request, settings, tags, ""),
    }


def _properties(
    request: LaunchRequest | GangRequest, settings: GceSettings, tags: Mapping[str, str], zone: str
) -> dict[str, Any]:
    """What a machine is made of, where `zone` is the path before the name of a type; "" for several machines."""
    offer = request.offer
    # Machines with GPUs and without boot from one baked image: it needs the driver, whatever machine it is made of.
    driver = offer.gpus or int(isinstance(request, LaunchRequest) and request.keep_off)
    attached = ATTACHED.fullmatch(offer.instance_type)
    machine_type = attached[1] if attached else offer.instance_type
    labels = to_labels(tags)

    def named(kind: str, name: str) -> str:
        return f"{zone}{kind}/{name}" if zone else name

    body: dict[str, Any] = {
        "machineType": named("machineTypes", machine_type),
        "labels": labels,
        "metadata": {"items": _metadata(request, settings)},
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": image_of(settings, driver, offer.arch, request.image),
                    "diskSizeGb": str(settings.disk_gib),
                    "diskType": named("diskTypes", _disk_type(settings, machine_type)),
                    "labels": labels,
                },
            }
        ],
        "networkInterfaces": [_network(settings, offer.region)],
        "scheduling": _scheduling(settings, gpus=offer.gpus, spot=offer.spot),
    }
    if attached:
        card = {"acceleratorType": named("acceleratorTypes", attached[2]), "acceleratorCount": int(attached[3])}
        body["guestAccelerators"] = [card]
    if settings.network_tags:
        body["tags"] = {"items": list(settings.network_tags)}
    if settings.machine_service_account:
        body["serviceAccounts"] = [{"email": settings.machine_service_account, "scopes": [_SCOPE]}]
    return body


def _metadata(request: LaunchRequest | GangRequest, settings: GceSettings) -> list[dict[str, str]]:
    items = {**settings.metadata, "startup-script": request.user_data}
    if settings.ssh_keys:
        items["ssh-keys"] = "\n".join(settings.ssh_keys)
    return [{"key": key, "value": value} for key, value in sorted(items.items())]


def _disk_type(settings: GceSettings, machine_type: str) -> str:
    fitting = "hyperdisk-balanced" if machine_type.startswith(_HYPERDISK) else "pd-balanced"
    return settings.disk_type or fitting


def _network(settings: GceSettings, region: str) -> dict[str, Any]:
    subnetwork = settings.subnetworks.get(region, "")
    nic: dict[str, Any] = {"subnetwork": _path(subnetwork, region)} if subnetwork else {"network": settings.network}
    if settings.nic_type:
        nic["nicType"] = settings.nic_type
    if settings.public_ip:
        nic["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    return nic


def _path(subnetwork: str, region: str) -> str:
    return subnetwork if "/" in subnetwork else f"regions/{region}/subnetworks/{subnetwork}"


def _scheduling(settings: GceSettings, *, gpus: int, spot: bool) -> Mapping[str, Any]:
    """The scheduling options. Google accepts a termination action only with spot or a maximum run time."""
    found: dict[str, Any] = {"provisioningModel": "SPOT" if spot else "STANDARD", "automaticRestart": False}
    if gpus or spot:
        found["onHostMaintenance"] = "TERMINATE"
    if settings.max_run_s is not None:
        found["maxRunDuration"] = {"seconds": str(settings.max_run_s)}
    if spot or settings.max_run_s is not None:
        found["instanceTerminationAction"] = "DELETE"
    return found
