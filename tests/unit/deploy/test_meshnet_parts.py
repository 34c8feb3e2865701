"""libmeshnet and meshnetd: they compile, and what makes no system calls holds, with AddressSanitizer and UBSan."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.tiers import bounded

SOURCES = Path(__file__).resolve().parents[3] / "deploy/container/meshnet"


def test_they_compile_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [SOURCES / "build", tmp_path], env={**os.environ, "CFLAGS": "-Werror"}, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert {path.name for path in tmp_path.iterdir()} == {"libmeshnet.so", "meshnetd"}


def test_addresses_answers_and_tables(tmp_path: Path) -> None:
    _make(tmp_path, "test")


def test_no_input_breaks_a_parser(tmp_path: Path) -> None:
    _make(tmp_path, "fuzz", f"FUZZ_S={bounded(1, 200)}")


def _make(out: Path, *words: str) -> None:
    done = subprocess.run(
        ["make", "-s", "-C", SOURCES, f"OUT={out}", *words], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
