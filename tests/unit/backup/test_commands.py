"""`meshctl backup` and `meshctl restore`, up to where they would change this machine."""

from __future__ import annotations

import io
import os
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from meshd.cli.errors import ExitCode
from meshd.cli.main import cli
from meshd.store.journal import Journal
from tests.unit.backup.conftest import HeadFiles, make_head
from tests.unit.worlds import NOW, Phase, machine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as the commands do")


def meshctl(head: HeadFiles, *words: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, ["--config", str(head.settings), *words], input=stdin)


@pytest.fixture
def file(head: HeadFiles, tmp_path: Path) -> Path:
    path = tmp_path / "head.tar"
    ran = meshctl(head, "backup", "--output", str(path))
    assert ran.exit_code == 0, ran.output
    return path


def test_the_archive_is_for_its_owner_alone_and_whole_or_not_there(file: Path, head: HeadFiles) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    assert not list(file.parent.glob(".meshd-backup-*"))
    before = file.read_bytes()
    (head.state / "machines.key").write_bytes(b"x" * (17 << 20))
    assert meshctl(head, "backup", "--output", str(file)).exit_code == ExitCode.FAILED
    assert file.read_bytes() == before
    assert not list(file.parent.glob(".meshd-backup-*"))


def test_stdout_has_the_archive_alone(head: HeadFiles) -> None:
    ran = meshctl(head, "backup", "--output=-")
    assert ran.exit_code == 0
    with tarfile.open(fileobj=io.BytesIO(ran.stdout_bytes)) as tar:
        assert "state/journal.db" in tar.getnames()


def test_a_dry_run_checks_and_changes_nothing(file: Path, head: HeadFiles, tmp_path: Path) -> None:
    new = make_head(tmp_path / "new", machines=0)
    before = (new.state / "journal.db").read_bytes()
    for words, stdin in (([str(file)], b""), (["-"], file.read_bytes())):
        ran = meshctl(new, "restore", "--dry-run", *words, stdin=stdin)
        assert ran.exit_code == 0 and "cluster lab" in ran.output, ran.output
    data = bytearray(file.read_bytes())
    at = data.index(b"k" * 32)
    data[at] = ord("n")
    file.write_bytes(data)
    ran = meshctl(new, "restore", "--dry-run", str(file))
    assert ran.exit_code == ExitCode.FAILED and "state/machines.key" in ran.output
    assert (new.state / "journal.db").read_bytes() == before


def test_a_dry_run_of_the_way_back_names_the_machines_that_came_since(head: HeadFiles, tmp_path: Path) -> None:
    copy = head.state / "journal.db.form-1"
    with closing(sqlite3.connect(head.state / "journal.db")) as db:
        db.execute("VACUUM INTO ?", (str(copy),))
    with closing(sqlite3.connect(copy)) as db:
        db.execute("PRAGMA user_version = 1")
    assert meshctl(head, "restore", "--dry-run", str(copy)).exit_code == 0
    running = Journal(head.state / "journal.db")
    came = machine(Phase.READY, index=3)
    running.put(came, "phase", "ready", NOW)
    ran = meshctl(head, "restore", "--dry-run", str(copy))
    running.close()
    assert ran.exit_code == ExitCode.FAILED and f"meshctl remove {came.name}" in ran.output


def test_another_cluster_is_refused(file: Path, tmp_path: Path) -> None:
    other = make_head(tmp_path / "other", cluster="other")
    ran = meshctl(other, "restore", "--dry-run", str(file))
    assert ran.exit_code == ExitCode.FAILED and "'other'" in ran.output


def test_without_a_terminal_it_wants_yes(file: Path, head: HeadFiles) -> None:
    ran = meshctl(head, "restore", str(file))
    assert ran.exit_code != 0 and "--yes" in ran.output


@pytest.mark.parametrize("path", ["missing", "."])
def test_what_is_no_file(path: str, head: HeadFiles, tmp_path: Path) -> None:
    ran = meshctl(head, "restore", "--dry-run", str(tmp_path / path))
    assert ran.exit_code == ExitCode.FAILED and "error:" in ran.output
