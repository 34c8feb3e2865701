"""Machines with a kernel of their own: their command line, and what a cut cable lets through."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.sandbox import uml
from deploy.sandbox.hypervisor import MachineSpec
from deploy.sandbox.images import MachineImage
from deploy.sandbox.network import GATEWAY, Network, Port, cut
from deploy.sandbox.processes import PidFolder

PORT = Port(11, "10.77.0.11", Path("/run/netns/x"), "m11", tap=True)
IMAGE = MachineImage("trixie-uml", (Path("/top"), Path("/low")), disk=Path("/disk"), kernel=Path("/linux.uml"))


def place(folder: Path) -> uml.Place:
    return uml.Place(folder, PORT, "group/m")


@pytest.mark.parametrize(("image", "own"), [("trixie-uml", True), ("head-uml", True), ("trixie", False)])
def test_the_image_says_whether_a_machine_has_a_kernel(image: str, own: bool) -> None:
    assert uml.is_uml(MachineSpec(name="m", user_data="", image=image)) is own


@pytest.mark.parametrize("user_data", ["", "#!/bin/sh\n"])
def test_the_command_line(tmp_path: Path, user_data: str) -> None:
    words = uml.words(MachineSpec(name="m", user_data=user_data, image="trixie-uml"), IMAGE, place(tmp_path))
    assert f"files=/low:/top:{tmp_path}/skeleton" in words, "what lies over the others is copied last"
    assert f"ubd0={tmp_path}/disk/cow,/disk" in words
    assert any("ifname=m11" in word and "gro=1" in word for word in words)
    assert ("cloud-init=disabled" in words) is (user_data == "")


async def test_what_a_machine_gets(tmp_path: Path) -> None:
    spec = MachineSpec(name="m", user_data="", image="trixie-uml", gpus=2, missing_gpus=1)
    await uml.lay_out(spec, place(tmp_path), [(Path("/a"), "/b", False), (Path("/c"), "/d", True)])
    files = tmp_path / "skeleton/etc/sandbox"
    assert (files / "binds").read_text() == "/a /b ro\n/c /d rw\n"
    assert (files / "devices").read_text() == "nvidia0\nnvidiactl\n"
    assert (files / "authorized_keys").read_text().startswith("ssh-ed25519 ")


def test_a_program_keeps_its_words(tmp_path: Path) -> None:
    line = uml.Line(Network("x"), place(tmp_path), "m", PidFolder(tmp_path / "pids"))
    assert line.inside(["sh", "-c", "echo 'a b' $HOME"], {"HOME": "/root"})[-1] == (
        "env -i HOME=/root sh -c 'echo '\"'\"'a b'\"'\"' $HOME'"
    )


def test_a_cut_cable_lets_nothing_but_ssh_of_the_gateway_through() -> None:
    accepted = [line.strip() for line in cut("m11").splitlines() if line.strip().endswith("accept")]
    assert len(accepted) == 4
    assert all(GATEWAY in line and ("port 22 " in line or " arp " in line) for line in accepted)
    assert cut("m11").count('"m11" drop') == 2
