"""Which image a machine boots from, which ones are outdated, which may be deleted; and the life of their machines."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from meshd.model.desired import Desired
from meshd.model.image import PARTS_TAG, SLURM_TAG, Bake, BakePhase
from meshd.model.machine import Phase, Removal
from meshd.model.observed import Fresh
from meshd.model.plan import Move
from meshd.plan.images import FAILED, READY, Wanted, half, image_for, newest, prunable, stale_words
from meshd.plan.planner import plan
from meshd.provider_api import Image, ImageId, ImageState, Instance, InstanceId, InstanceState
from tests.unit.worlds import AWS, NOW, machine, snapshot


def image(number: int, **changes: object) -> Image:
    one = Image(
        AWS, ImageId(f"ami-{number}"), f"lab-h100-0-aaaaa{number}", ImageState.AVAILABLE, "r1",
        created_at=NOW + timedelta(hours=number), tags={SLURM_TAG: "24.11.5", PARTS_TAG: "p1"},
    )  # fmt: skip
    return replace(one, **changes)  # type: ignore[arg-type]


def bake(name: str, phase: BakePhase) -> Bake:
    return Bake(name, "aws", "r1", "x86_64", phase, NOW, NOW, "", "p1")


def test_the_newest_that_is_ready_there_is_taken() -> None:
    images = [
        image(1), image(2), image(3, state=ImageState.PENDING), image(4, state=ImageState.UNKNOWN),
        image(5, region="r2"), image(6, arch="arm64"),
    ]  # fmt: skip
    offer = replace(machine(Phase.READY).offer, region="r1")
    assert image_for(images, offer) == "ami-2"
    assert image_for(images, replace(offer, arch="arm64")) == "ami-6"
    assert image_for(images, replace(offer, region="r3")) == ""
    assert newest([image(1, created_at=None), image(2)], "aws", "r1", "x86_64") == image(2)


def test_an_image_without_a_region_is_for_all() -> None:
    images = [image(1, region=""), image(2, region="", arch=""), image(3, region="", arch="arm64")]
    offer = machine(Phase.READY).offer
    assert {image_for(images, replace(offer, region=region)) for region in ("r1", "r2")} == {"ami-1"}
    assert newest(images, "aws", "", "x86_64") == images[0], "what the list of images asks"
    assert {one.id for one in prunable([*images, image(4, region="")], set(), [])} == {"ami-1"}


def test_an_image_is_stale_when_versions_move() -> None:
    assert stale_words(image(1), Wanted("p1", "24.11.9")) == "", "a fix of the same release"
    assert "25.05.1" in stale_words(image(1), Wanted("p1", "25.05.1"))
    assert stale_words(image(1), Wanted("p2", "24.11.5"))
    assert stale_words(image(1), Wanted("p1")) == "", "unknown is not another"


def test_what_is_pruned() -> None:
    images = [
        image(1), image(2), image(3), image(4, state=ImageState.FAILED), image(5, state=ImageState.LEFTOVER),
        image(6, state=ImageState.PENDING), image(7, state=ImageState.UNKNOWN), image(8, state=ImageState.FAILED),
        image(9, region="r2"),
    ]  # fmt: skip
    making = [bake(image(8).name, BakePhase.COPYING), bake(image(4).name, BakePhase.FAILED)]
    assert {one.id for one in prunable(images, {"ami-2"}, making)} == {"ami-1", "ami-4", "ami-5"}
    assert {one.id for one in prunable(images, {"ami-2"}, making, with_newest=True)} == {
        "ami-1", "ami-3", "ami-4", "ami-5", "ami-9",
    }  # fmt: skip
    assert {one.id for one in half(images, making)} == {"ami-4", "ami-5"}


def test_only_a_whole_line_of_the_console_counts() -> None:
    text = "x\r\nmeshd: image ready slurm=24.11.5 tailscale=1.96.0\r\n[  OK  ] off\r\n"
    found = READY.search(text)
    assert found and found.groups() == ("24.11.5", "1.96.0")
    assert READY.search("echo meshd: image ready slurm=1 tailscale=2") is None
    failed = FAILED.search("meshd: image failed: no packages after 15 min of tries\r\n")
    assert failed and failed[1] == "no packages after 15 min of tries"


def planned(state: InstanceState | None, **changes: object) -> list[object]:
    one = machine(Phase.BOOTING, index=0, age_s=3000.0, baking=True, **changes)
    there = Instance(AWS, InstanceId(one.instance_id), one.name, state or InstanceState.UNKNOWN, region="r1")
    seen = snapshot(instances={"aws": Fresh((there,) if state is not None else (), NOW)})
    return [*plan(Desired("lab", {}, {}), [one], seen, NOW).steps]


@pytest.mark.parametrize(
    "state",
    [
        InstanceState.BOOTING, InstanceState.RUNNING, InstanceState.STOPPED, InstanceState.STOPPING,
        InstanceState.TERMINATING,  # Google's word also for one that powers itself off
    ],
)  # fmt: skip
def test_a_machine_of_an_image_is_left_alone_while_it_installs_and_when_it_is_off(state: InstanceState) -> None:
    assert planned(state) == []


def test_a_machine_of_an_image_that_its_cloud_ended_is_given_up() -> None:
    (step,) = planned(InstanceState.GONE)
    assert isinstance(step, Move) and step.to is Phase.TERMINATING


def test_a_machine_of_an_image_is_given_back_when_it_has_served() -> None:
    (step,) = planned(InstanceState.STOPPED, removal=Removal.FORCED)
    assert isinstance(step, Move) and step.to is Phase.TERMINATING
