"""libmeshnet and meshnetd: they compile, and what makes no system calls holds, with AddressSanitizer and UBSan."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from deploy.node.meshd_node import pod
from deploy.node.meshd_node.paths import Paths
from meshd.bootstrap import assets
from tests.tiers import bounded

SOURCES = Path(__file__).resolve().parents[3] / "deploy/container/meshnet"


def test_what_the_agent_brings_compiles_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zipfile.ZipFile(io.BytesIO(assets.agent_zipapp())).extractall(tmp_path / "opt/meshd-node/lib")
    (tmp_path / "usr/include").mkdir(parents=True)
    (tmp_path / "usr/include/stdlib.h").touch()  # else the agent installs libc6-dev
    monkeypatch.setenv("CFLAGS", "-Werror")
    paths = Paths(tmp_path)
    before = os.umask(0o077)  # the agent's
    try:
        pod.build(paths)
    finally:
        os.umask(before)
    built = [paths.pod / name for names in pod.BUILT.values() for name in names]
    assert {path.read_bytes()[:4] for path in built} == {b"\x7fELF"}
    folders = [paths.pod.parent, paths.pod, paths.pod / "service/slurmd"]
    assert {path.stat().st_mode & 0o777 for path in [*built, *folders]} == {0o755}


def test_addresses_answers_and_tables(tmp_path: Path) -> None:
    _make(tmp_path, "test")


def test_no_input_breaks_a_parser(tmp_path: Path) -> None:
    _make(tmp_path, "fuzz", f"FUZZ_S={bounded(1, 200)}")


def _make(out: Path, *words: str) -> None:
    done = subprocess.run(
        ["make", "-s", "-C", SOURCES, f"OUT={out}", *words], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
