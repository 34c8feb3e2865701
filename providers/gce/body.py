"""The body of instances.insert. PURE: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshd.provider_api import LaunchRequest
from providers.gce.mapping import CLUSTER_LABEL, MACHINE_LABEL, to_labels
from providers.gce.settings import ATTACHED, GceSettings

#: Ubuntu 24.04 everywhere; with NVIDIA's driver 580 where there are GPUs.
IMAGES = {
    "gpu/x86_64": "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580",
    "gpu/arm64": "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accelerator-2404-arm64-with-nvidia-580",
    "cpu/x86_64": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
    "cpu/arm64": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-arm64",
}
#: Families that boot from nothing but Hyperdisk.
_HYPERDISK = ("a3-ultragpu-", "a4-", "a4x-", "g4-", "c4-", "c4a-", "c4d-", "n4-")
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def image_of(settings: GceSettings, gpus: int, arch: str) -> str:
    """The source image for a machine."""
    kind = f"{'gpu' if gpus else 'cpu'}/{arch}"
    return settings.images.get(kind) or IMAGES[kind]


def insert_body(request: LaunchRequest, settings: GceSettings) -> dict[str, Any]:
    """The body of instances.insert.

    GPUs that belong to the type are not named; those attached to an N1 are. Machines are not restarted in place and
    not moved: another one is rented instead.
    """
    offer, zone = request.offer, f"zones/{request.offer.zone}"
    attached = ATTACHED.fullmatch(offer.instance_type)
    machine_type = attached[1] if attached else offer.instance_type
    tags = {**settings.labels, **request.tags, CLUSTER_LABEL: request.cluster, MACHINE_LABEL: request.token}
    labels = to_labels(tags)
    body: dict[str, Any] = {
        "name": request.token,
        "machineType": f"{zone}/machineTypes/{machine_type}",
        "labels": labels,
        "metadata": {"items": _metadata(request, settings)},
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": image_of(settings, offer.gpus, offer.arch),
                    "diskSizeGb": str(settings.disk_gib),
                    "diskType": f"{zone}/diskTypes/{_disk_type(settings, machine_type)}",
                    "labels": labels,
                },
            }
        ],
        "networkInterfaces": [_network(settings, offer.region)],
        "scheduling": _scheduling(settings, gpus=offer.gpus, spot=offer.spot),
    }
    if attached:
        card = {"acceleratorType": f"{zone}/acceleratorTypes/{attached[2]}", "acceleratorCount": int(attached[3])}
        body["guestAccelerators"] = [card]
    if settings.network_tags:
        body["tags"] = {"items": list(settings.network_tags)}
    if settings.machine_service_account:
        body["serviceAccounts"] = [{"email": settings.machine_service_account, "scopes": [_SCOPE]}]
    return body


def _metadata(request: LaunchRequest, settings: GceSettings) -> list[dict[str, str]]:
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
    """Google takes an action on termination only where it may terminate by itself."""
    found: dict[str, Any] = {"provisioningModel": "SPOT" if spot else "STANDARD", "automaticRestart": False}
    if gpus or spot:
        found["onHostMaintenance"] = "TERMINATE"
    if settings.max_run_s is not None:
        found["maxRunDuration"] = {"seconds": str(settings.max_run_s)}
    if spot or settings.max_run_s is not None:
        found["instanceTerminationAction"] = "DELETE"
    return found
