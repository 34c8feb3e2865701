"""libslurmconf: what it appends to the files that slurmd stores, and that it leaves all others alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "deploy/container/slurmconf"
STORE = """
import os, sys
name, text = sys.argv[1], sys.argv[2]
if text == "(gone)":
    try:
        os.unlink(name)
    except FileNotFoundError:
        print("was not there")
else:
    with open(name + ".new", "w") as file:
        file.write(text)
    os.rename(name + ".new", name)
"""

pytestmark = pytest.mark.skipif(not shutil.which("cc") or not shutil.which("make"), reason="needs a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slurmconf") / "libslurmconf.so"
    subprocess.run(["make", "-s", "-B", "-C", SOURCES, f"LIBRARY={path}"], check=True, timeout=60)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "spool/conf-cache").mkdir(parents=True)
    (tmp_path / "local").mkdir()
    (tmp_path / "local/slurm.conf").write_text("B=own\n")
    return tmp_path / "spool/conf-cache"


def store(library: Path, path: Path, text: str, *, local: Path | None = None) -> str:
    """Store a file as slurmd does; what the program says."""
    own = {} if local is None else {"MESHD_SLURM_LOCAL": str(local)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", STORE, str(path), text], check=True, timeout=20, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "LD_PRELOAD": str(library), **own},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("text", ["A=1\n", "A=1", "A=1 # no", ""])
def test_the_own_settings_come_last(library: Path, cache: Path, tmp_path: Path, text: str) -> None:
    for _ in range(2):  # what comes again is the head's file alone
        store(library, cache / "slurm.conf", text, local=tmp_path / "local")
        assert (cache / "slurm.conf").read_text() == f"{text}\nB=own\n"
    assert [path.name for path in cache.iterdir()] == ["slurm.conf"]


def test_a_file_that_the_head_does_not_have(library: Path, cache: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    assert store(library, cache / "slurm.conf", "(gone)", local=local) == "was not there\n"
    assert store(library, cache / "slurm.conf", "(gone)", local=local) == ""
    assert (cache / "slurm.conf").read_text() == "\nB=own\n"
    store(library, cache / "gres.conf", "A=1\n", local=local)
    store(library, cache / "gres.conf", "(gone)", local=local)
    assert [path.name for path in cache.iterdir()] == ["slurm.conf"]


def test_all_other_files_are_left_alone(library: Path, cache: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    for path in (cache / "gres.conf", tmp_path / "slurm.conf", tmp_path / "xconf-cache", cache.parent / "slurm.conf"):
        store(library, path, "A=1\n", local=local)
        assert path.read_text() == "A=1\n"
    store(library, cache / "slurm.conf", "A=1\n")
    assert (cache / "slurm.conf").read_text() == "A=1\n", "no directory is named"
    store(library, cache / "slurm.conf", "A=1\n", local=tmp_path / "missing")
    assert (cache / "slurm.conf").read_text() == "A=1\n"
    store(library, cache / "slurm.conf", "A=1\n", local=tmp_path / ("x/" * 2200))
    assert (cache / "slurm.conf").read_text() == "A=1\n", "a path that is too long"


def test_settings_that_cannot_be_read_keep_the_old_file(library: Path, cache: Path, tmp_path: Path) -> None:
    store(library, cache / "slurm.conf", "A=1\n", local=tmp_path / "local")
    (tmp_path / "local/slurm.conf").unlink()
    (tmp_path / "local/slurm.conf").mkdir()
    with pytest.raises(subprocess.CalledProcessError):
        store(library, cache / "slurm.conf", "A=2\n", local=tmp_path / "local")
    assert (cache / "slurm.conf").read_text() == "A=1\n\nB=own\n"
