"""Compute Engine's images: labels, and what a listing may show."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.provider_api import IMAGE_TAG, ImageRequest, ImageState, Instance, InstanceId, InstanceState
from providers.gce.errors import GCE
from providers.gce.images import boot_disk, image_body, is_image_of, of_escaped, to_escaped, to_image
from providers.gce.mapping import image_of
from providers.gce.settings import GceSettings

LABEL = re.compile(r"[a-z0-9_-]{0,63}")
RAW = {
    "name": "lab-h100-0-k7q2mz", "status": "READY", "architecture": "ARM64", "diskSizeGb": "100",
    "creationTimestamp": "2026-03-01T04:00:00.000-08:00",
    "labels": {"meshd-cluster": "lab", "meshd-image": "lab-h100-0-k7q2mz", "meshd-slurm": "24_2e11_2e5"},
}  # fmt: skip


@given(st.text(alphabet=st.characters(max_codepoint=255), max_size=20))
def test_a_label_gives_back_what_it_was_given(text: str) -> None:
    assert LABEL.fullmatch(to_escaped(text)) and of_escaped(to_escaped(text)) == text


@given(st.text(max_size=200))
def test_a_label_is_one_whatever_it_is_given(text: str) -> None:
    assert LABEL.fullmatch(to_escaped(text))


def test_versions_can_be_read() -> None:
    assert to_escaped("24.11.5-4") == "24_2e11_2e5-4"


def test_an_image_of_a_listing() -> None:
    image = to_image(RAW, 0.05)
    assert (image.id, image.state, image.region, image.arch) == (RAW["name"], ImageState.AVAILABLE, "", "arm64")
    assert (image.size_gib, image.usd_per_month) == (100, pytest.approx(5.0))
    assert image.created_at == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert (image.tags["meshd-slurm"], image.tags[IMAGE_TAG]) == ("24.11.5", image.name)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PENDING", ImageState.PENDING), ("FAILED", ImageState.FAILED), ("DELETING", ImageState.UNKNOWN),
        ("DREAMING", ImageState.UNKNOWN), (None, ImageState.UNKNOWN),
    ],
)  # fmt: skip
def test_states(status: str | None, state: ImageState) -> None:
    assert to_image({**RAW, "status": status}, 0.05).state is state


@pytest.mark.parametrize("said", [None, "ARCHITECTURE_UNSPECIFIED", "RISCV"])
def test_an_image_for_no_known_machine_fits_none(said: str | None) -> None:
    assert to_image({**RAW, "architecture": said}, 0.05).arch == ""


@pytest.mark.parametrize("size", [None, "", "x", "²", "9" * 5000, -1])
def test_a_size_that_is_none_is_unknown(size: object) -> None:
    image = to_image({**RAW, "diskSizeGb": size}, 0.05)
    assert image.size_gib is None and image.usd_per_month is None


def test_whose_an_image_is() -> None:
    assert is_image_of(RAW, "lab") and not is_image_of(RAW, "other") and not is_image_of({**RAW, "name": ""}, "lab")


def test_the_request_copies_the_boot_disk() -> None:
    url = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a/disks/"
    machine = {"disks": [{"boot": False, "source": f"{url}data"}, {"boot": True, "source": f"{url}lab-h100-0-k7q2mz"}]}
    disk = boot_disk(machine)
    assert disk == "projects/p/zones/us-central1-a/disks/lab-h100-0-k7q2mz"
    assert boot_disk({}) == boot_disk({"disks": [{"boot": True, "source": "elsewhere"}]}) == ""
    one = Instance(GCE, InstanceId("us-central1-a/x"), "x", InstanceState.STOPPED)
    body = image_body(ImageRequest("lab-h100-0-k7q2mz", one, {"meshd-cluster": "Lab", "meshd-slurm": "24.11.5"}), disk)
    assert body["sourceDisk"] == disk
    assert body["labels"] == {
        "meshd-cluster": "lab", "meshd-image": "lab-h100-0-k7q2mz", "meshd-slurm": "24_2e11_2e5",
    }  # fmt: skip


def test_what_the_settings_name_comes_first() -> None:
    settings = GceSettings(images={"cpu/x86_64": "projects/mine/global/images/x"})
    assert image_of(settings, 0, "x86_64", "baked") == "projects/mine/global/images/x"
    assert image_of(settings, 8, "x86_64", "baked") == "global/images/baked"
    assert image_of(settings, 8, "x86_64").startswith("projects/deeplearning-platform-release/")
