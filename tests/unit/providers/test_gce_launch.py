"""The create request of Compute Engine."""

from __future__ import annotations

from typing import Any

import pytest

from meshd.provider_api import LaunchRequest, Offer, ProviderName
from providers.gce.mapping import IMAGES, insert_body
from providers.gce.settings import GceSettings

ZONE = "us-central1-a"
GCE = ProviderName("gce")
OFFER = Offer(GCE, "us-central1", ZONE, "a3-highgpu-1g", "h100-sxm", 1, 80, 26, 239616, 3.35, spot=True)
CPU = Offer(GCE, "us-central1", ZONE, "e2-standard-4", "", 0, 0, 4, 16384, 0.13)


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
