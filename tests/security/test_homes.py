"""A user exchanges what is in his home while root gives his files to another number: nothing else is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.node.meshd_node.account_homes import Homes
from deploy.node.meshd_node.account_merge import Move
from deploy.node.meshd_node.paths import Paths

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="to give files away needs root")

MOVE = Move("owner", "/home/owner", (1000, 59999), (1000, 59999))


def owner_of(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home/owner"
    (home / "d").mkdir(parents=True)
    (home / "d/f").write_text("theirs\n")
    (tmp_path / "secret").write_text("another's\n")
    os.chown(tmp_path / "secret", 1000, 1000)
    for path in (home, home / "d", home / "d/f"):
        os.chown(path, 1000, 1000)
    return home


@pytest.mark.parametrize("victim", [(0, 0), (1000, 0), (0, 1000)])
def test_what_is_looked_at_is_what_is_given(
    tmp_path: Path, home: Path, victim: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a name and the gift, another file is put under that name."""
    other = tmp_path / "other"
    other.write_text("root's\n")
    os.chown(other, *victim)
    real_stat, real_fstat = os.stat, os.fstat
    theirs = (home / "d/f").stat().st_ino

    def exchange(found: os.stat_result) -> os.stat_result:
        if found.st_ino == theirs and not (home / "aside").exists():
            (home / "d/f").rename(home / "aside")
            (home / "d/f").hardlink_to(other)
        return found

    monkeypatch.setattr(os, "stat", lambda *words, **more: exchange(real_stat(*words, **more)))
    monkeypatch.setattr(os, "fstat", lambda fd: exchange(real_fstat(fd)))
    Homes(Paths(tmp_path), {}, ()).move(MOVE)
    monkeypatch.undo()
    assert (home / "aside").exists()
    assert owner_of(other) == victim
    assert owner_of(home / "aside") == (59999, 59999)


def test_a_home_that_is_a_link_is_not_followed(tmp_path: Path, home: Path) -> None:
    other = tmp_path / "elsewhere"
    home.rename(other)
    home.symlink_to(other)
    os.lchown(home, 1000, 1000)
    Homes(Paths(tmp_path), {}, ()).move(MOVE)
    assert owner_of(other / "d/f") == (1000, 1000)


def test_a_directory_that_becomes_a_link_is_not_followed(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "f").write_text("another directory's\n")
    os.chown(other / "f", 1000, 1000)
    inode, real = (home / "d").stat().st_ino, os.chown

    def exchange(path: str, uid: int, gid: int, **more: int) -> None:
        real(path, uid, gid, **more)
        if (home / "d").lstat().st_ino == inode and owner_of(home / "d") == (59999, 59999):
            (home / "d").rename(home / "aside")
            (home / "d").symlink_to(other)

    monkeypatch.setattr(os, "chown", exchange)
    Homes(Paths(tmp_path), {}, ()).move(MOVE)
    monkeypatch.undo()
    assert (home / "d").is_symlink()
    assert owner_of(other / "f") == (1000, 1000)
