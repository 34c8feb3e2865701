"""Root on the head comes in by its key: authorized_keys, sshd's settings, and a pod's own server."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from deploy.node.meshd_node import facts, ssh_key
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.paths import Paths

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKlhJvVt0yM2bB1xw2Yq0JbW3n0m8rZcVxkq1R4mS1dX"
OTHER = KEY.replace("KlhJ", "OTHR")
HEAD = "100.64.0.1"


def nothing(_text: str) -> None:
    pass


def program(directory: Path, name: str, script: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A machine with systemd. What its programs are asked for goes into `calls`."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "root").mkdir()
    (tmp_path / "etc/ssh/sshd_config.d").mkdir(parents=True)
    bin_ = tmp_path / "bin"
    program(bin_, "systemctl", f'echo "systemctl $*" >>{tmp_path}/calls; [ "$1 $3" != "is-active sshd.service" ]')
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    sshd(tmp_path, "without-password")
    return Node(Paths(tmp_path), systemctl=str(bin_ / "systemctl"), tun=True)


def sshd(root: Path, without: str) -> None:
    """sshd's answer to -T: this, or what our file says."""
    ours = root / "etc/ssh/sshd_config.d/00-meshd.conf"
    program(
        root / "bin",
        "sshd",
        f"[ -f {ours} ] && echo permitrootlogin without-password || echo permitrootlogin {without}",
    )


def calls(node: Node) -> str:
    file = node.paths.root / "calls"
    return file.read_text() if file.exists() else ""


def put(node: Node, key: str = KEY, head: str = HEAD) -> None:
    ssh_key.apply(node, {"key": key, "from": head if key else ""}, nothing)


def test_the_host_key_is_that_of_the_server_that_root_comes_in_by(node: Node) -> None:
    node.paths.ssh_host_key.write_text(f"{KEY} root@image\n")
    assert facts.ssh_host_key(node.paths, systemd=True) == KEY
    assert facts.ssh_host_key(node.paths, systemd=False) == KEY, "no pod of ours"
    node.paths.pod_services.mkdir(parents=True)
    assert facts.ssh_host_key(node.paths, systemd=False) == "", "there is no service for it"
    (node.paths.pod_services / "sshd").mkdir()
    own = facts.ssh_host_key(node.paths, systemd=False)
    assert own.startswith("ssh-ed25519 ") and own != KEY
    assert facts.ssh_host_key(node.paths, systemd=False) == own, "made once"
    assert stat.S_IMODE(node.paths.pod_ssh.stat().st_mode) == 0o700


def test_the_line_is_kept_among_others(node: Node) -> None:
    put(node)
    file = node.paths.root_ssh / "authorized_keys"
    line = f'from="{HEAD}" {KEY} {ssh_key.MARK}\n'
    assert file.read_text() == line
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]
    file.write_text(f"ssh-rsa AAAA mine\n{line}# a comment \udce4\n", "utf-8", "surrogateescape")
    put(node, OTHER)
    text = file.read_text("utf-8", "surrogateescape")
    assert text.splitlines() == ["ssh-rsa AAAA mine", "# a comment \udce4", line.strip().replace(KEY, OTHER)]
    before = file.stat().st_ino
    put(node, OTHER)
    assert file.stat().st_ino == before, "nothing to do"
    put(node, "")
    assert file.read_text("utf-8", "surrogateescape").splitlines() == ["ssh-rsa AAAA mine", "# a comment \udce4"]


def test_a_key_that_is_taken_back_before_it_came_makes_no_file(node: Node) -> None:
    put(node, "")
    assert not node.paths.root_ssh.exists()


@pytest.mark.parametrize(
    "value",
    [
        {"key": KEY + "\nssh-rsa AAAA evil", "from": HEAD}, {"key": KEY, "from": '*" command="x'},
        {"key": KEY, "from": ""}, {"key": "ssh-rsa AAAA", "from": HEAD}, {"key": KEY + " x", "from": HEAD},
    ],
)  # fmt: skip
def test_what_is_no_key_or_no_address_is_refused(node: Node, value: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ssh_key.apply(node, value, nothing)
    assert not (node.paths.root_ssh / "authorized_keys").exists()


def test_an_image_that_lets_root_in_is_left_alone(node: Node) -> None:
    put(node)
    assert list(node.paths.sshd_config_d.iterdir()) == []
    assert "reload" not in calls(node)


def test_an_image_that_keeps_root_out_lets_it_in_from_the_head(node: Node) -> None:
    sshd(node.paths.root, "no")
    put(node)
    text = (node.paths.sshd_config_d / "00-meshd.conf").read_text()
    assert f"Match User root Address {HEAD}\n" in text
    assert "systemctl reload ssh.service" in calls(node)
    put(node)
    assert calls(node).count("reload") == 1
    put(node, "")
    assert list(node.paths.sshd_config_d.iterdir()) == []
    assert calls(node).count("reload") == 2
