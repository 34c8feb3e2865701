"""Which paths root alone decides; the head's and the agent's rule are the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.node.meshd_node import root_path as agents
from meshd.runtime import root_path as heads

RULES = [heads.others_decide, agents.others_decide]


@pytest.fixture(params=RULES, ids=["head", "agent"])
def rule(request: pytest.FixtureRequest) -> Callable[[Path], str]:
    found: Callable[[Path], str] = request.param
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("own/deep", "all/deep", "sticky"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "all").chmod(0o777)
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "to-all").symlink_to("all/deep")
    (tmp_path / "to-own").symlink_to(tmp_path / "own")
    (tmp_path / "up").symlink_to("own/deep/../../all")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "own/file").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("own/deep", ""), ("own/missing/more", ""), ("own/file", ""), ("own/file/x", ""), ("to-own/deep", ""),
        ("sticky/new", ""), ("all", ""), ("all/deep", "all"), ("all/missing", "all"), ("to-all", "all"),
        ("up", ""), ("up/deep", "all"), ("loop", "loop"), ("own/deep/../../all/deep", "all"),
    ],
)  # fmt: skip
def test_who_decides(rule: Callable[[Path], str], place: Path, path: str, expected: str) -> None:
    found = rule(Path(f"{place}/{path}"))
    assert found == (str(place / expected) if expected else "")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives directories away")
def test_what_is_another_users(rule: Callable[[Path], str], place: Path) -> None:
    os.chown(place / "own", 1500, 1500)
    assert rule(place / "own") == "", "the directory itself may be anybody's"
    assert rule(place / "own/deep") == str(place / "own")
    (place / "sticky/planted").mkdir()
    assert rule(place / "sticky/planted") == ""
    os.chown(place / "sticky/planted", 1500, 1500)
    assert rule(place / "sticky/planted") == str(place / "sticky/planted")
