"""pyxis on a node: its library is checked before its line is there, and slurmd waits for both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.node.meshd_node import containers
from deploy.node.meshd_node.errors import NodeError
from deploy.node.meshd_node.node import Node
from deploy.node.meshd_node.paths import Paths

PLUGIN = "/usr/lib/slurm/spank_pyxis.so"
LOADS = """grep -q '^required ' "$(sed -n 's/^PlugStackConfig=//p' "$SLURM_CONF")" """
"""What srun does with a plugin that suits it."""
REFUSES = """echo 'srun: error: spank: spank_pyxis.so: Incompatible plugin version' >&2; exit 1"""
LINE = f"required {PLUGIN} runtime_path=/run/pyxis"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A machine whose image has enroot and pyxis."""
    program(tmp_path, "enroot", "exit 0")
    program(tmp_path, "srun", LOADS)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    library(tmp_path, PLUGIN)
    return Node(Paths(tmp_path), tun=True)


def program(root: Path, name: str, script: str) -> None:
    path = root / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def library(root: Path, path: str, content: bytes = b"\x7fELF...") -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    place.chmod(0o644)
    return place


def apply(node: Node, line: str = LINE, *, shipped: bool = False) -> str:
    """The lines that are there then."""
    containers.apply(node, {"line": line, "shipped": shipped}, lambda _text: None)
    return lines(node)


def lines(node: Node) -> str:
    path = node.paths.plugstack_d / containers.FILE
    return "".join(one for one in path.read_text().splitlines() if not one.startswith("#")) if path.exists() else ""


def test_the_line_is_written_and_goes_with_that_of_the_head(node: Node) -> None:
    assert apply(node) == LINE
    assert apply(node) == LINE
    assert apply(node, f"required {PLUGIN}") == f"required {PLUGIN}"
    assert apply(node, "") == ""


def test_a_line_that_slurm_ships_is_not_written_again(node: Node) -> None:
    apply(node)
    assert apply(node, shipped=True) == ""


def test_a_line_of_the_images_own_stays_alone(node: Node) -> None:
    node.paths.plugstack_d.mkdir(parents=True)
    own = node.paths.plugstack_d / "pyxis.conf"
    own.write_text(f"required {PLUGIN}\n")
    assert apply(node) == ""
    assert own.read_text() == f"required {PLUGIN}\n"


@pytest.mark.parametrize("shipped", [False, True])
def test_without_the_library_there_is_no_line_and_no_node(node: Node, shipped: bool) -> None:
    apply(node)
    (node.paths.root / PLUGIN.lstrip("/")).unlink()
    with pytest.raises(NodeError):
        apply(node, shipped=shipped)
    assert lines(node) == ""


def test_a_library_that_others_may_write_is_not_loaded(node: Node) -> None:
    (node.paths.root / PLUGIN.lstrip("/")).chmod(0o666)
    with pytest.raises(NodeError):
        apply(node)
    assert lines(node) == ""


def test_what_is_no_library_is_not_loaded(node: Node) -> None:
    library(node.paths.root, PLUGIN, b"not found\n")
    with pytest.raises(NodeError):
        apply(node)


def test_pyxis_without_enroot_is_not_enough(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(node.paths.root / "nothing"))
    with pytest.raises(NodeError):
        apply(node)
    assert lines(node) == ""


def test_a_plugin_that_slurm_refuses_is_not_loaded(node: Node) -> None:
    assert apply(node) == LINE
    program(node.paths.root, "srun", REFUSES)
    with pytest.raises(NodeError, match="Incompatible plugin version"):
        apply(node)
    assert lines(node) == "", "slurmd would end"


def test_a_plugin_without_a_path_is_looked_for_where_slurm_does(node: Node) -> None:
    short = "required spank_pyxis.so"
    assert apply(node, short) == short
    (node.paths.root / PLUGIN.lstrip("/")).unlink()
    with pytest.raises(NodeError):
        apply(node, short)
    library(node.paths.root, "/usr/lib/x86_64-linux-gnu/slurm-wlm/spank_pyxis.so")
    assert apply(node, short) == short


@pytest.mark.parametrize("line", ["required", "include /etc/passwd", "required a\nrequired b"])
def test_what_is_no_line_is_refused(node: Node, line: str) -> None:
    with pytest.raises((ValueError, NodeError)):
        apply(node, line)
    assert lines(node) == ""
