"""Somebody else's adapter runs the contract suite, outside this repository; and the suite finds faults in adapters."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

TINY = Path(__file__).parent / "tinycloud"


def run_suite(tmp_path: Path, name: str, *options: str) -> tuple[dict[str, str], str]:
    """Run a suite of tinycloud's elsewhere; returns the outcome by case, and what was printed."""
    shutil.copytree(TINY, tmp_path / "tinycloud")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    shutil.copy(TINY / f"suite_{name}.py", tmp_path / f"test_{name}.py")
    command = [sys.executable, "-m", "pytest", "-p", "meshd.contract.plugin", "--junitxml=out.xml", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250)
    assert (tmp_path / "out.xml").exists(), done.stdout + done.stderr
    outcomes = {}
    for case in ElementTree.parse(tmp_path / "out.xml").getroot().iter("testcase"):
        parts = [part.tag for part in case if part.tag in ("failure", "error", "skipped")]
        outcomes[f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"] = (*parts, "passed")[0]
    return outcomes, done.stdout


def before_bracket(case: str) -> str:
    """A case without its arguments, which `-k` cannot take."""
    return case.partition("[")[0]


def test_somebody_elses_adapter_passes_and_what_its_rig_cannot_is_told(tmp_path: Path) -> None:
    outcomes, printed = run_suite(tmp_path, "good")
    assert set(outcomes.values()) == {"passed", "skipped"}
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    assert passed >= 110
    assert f"tiny: {passed} passed, 3 not covered, {len(outcomes) - passed - 3} does not apply" in printed


def test_the_suite_finds_each_fault_of_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adapter in bugs.py has one fault of its author's, and names the cases that must fail for it."""
    monkeypatch.syspath_prepend(str(TINY.parent))
    expected = {f"Test{bug.__name__}": bug.found_by for bug in importlib.import_module("tinycloud.bugs").BUGS}
    chosen = [f"({bug} and ({' or '.join(map(before_bracket, cases))}))" for bug, cases in expected.items()]
    outcomes, _ = run_suite(tmp_path, "bugs", "-k", " or ".join(chosen), "--contract-seeds=1")
    failed = [name for name, outcome in outcomes.items() if outcome == "failure"]
    missed = [
        (bug, case)
        for bug, cases in expected.items()
        for case in cases
        if not any(name.startswith(f"{bug}::") and case in name for name in failed)
    ]
    assert missed == []
    assert len(expected) >= 14
