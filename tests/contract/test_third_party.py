"""docs/adapters.md holds: an adapter outside this repository runs the contract suite, and meshd loads it."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import documents
from tests.here import Here, copy_of_checkout

TINY = Path(__file__).parent / "tinycloud"


VENV = "/tmp/venv"
MYCLOUD = "/tmp/mycloud"
"""The folders in the page."""


def run_suite(tmp_path: Path, name: str, *options: str) -> tuple[dict[str, str], str]:
    """Run a suite of tinycloud outside the repository; returns the outcome by case, and the output."""
    shutil.copytree(TINY, tmp_path / "tinycloud")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    shutil.copy(TINY / f"suite_{name}.py", tmp_path / f"test_{name}.py")
    command = [sys.executable, "-m", "pytest", "-p", "meshd.contract.plugin", "--junitxml=out.xml", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250)
    assert (tmp_path / "out.xml").exists(), done.stdout + done.stderr
    return outcomes_of(tmp_path / "out.xml"), done.stdout


def outcomes_of(report: Path) -> dict[str, str]:
    """The outcome of each case."""
    outcomes = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        parts = [part.tag for part in case if part.tag in ("failure", "error", "skipped")]
        outcomes[f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"] = (*parts, "passed")[0]
    return outcomes


def before_bracket(case: str) -> str:
    """A case without its arguments, which `-k` does not accept."""
    return case.partition("[")[0]


def test_an_adapter_from_outside_passes_and_the_report_names_what_is_not_covered(tmp_path: Path) -> None:
    """As the page says, but in the environment of the tests."""
    (block,) = documents.share(__file__, "docs/adapters.md")
    _, *commands = block.typed()
    report = tmp_path / "out.xml"
    words = {f"{VENV}/bin/python": sys.executable, MYCLOUD: str(tmp_path / "mycloud")}
    env = {"PYTEST_ADDOPTS": f"--junitxml={report}"}
    printed = Here(tmp_path, words=words, env=env, timeout_s=250).block(block, commands)[-1]
    outcomes = outcomes_of(report)
    assert set(outcomes.values()) == {"passed", "skipped"}
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    assert passed >= 110
    assert f"tiny: {passed} passed, 3 not covered, {len(outcomes) - passed - 3} does not apply" in printed


@pytest.mark.nightly
def test_meshd_and_its_suite_are_installed_from_a_clone(tmp_path: Path) -> None:
    """All of the page's block, in a copy of the clone: an environment of its own, from the package index."""
    (block,) = documents.share(__file__, "docs/adapters.md")
    clone = copy_of_checkout(tmp_path / "clone")
    words = {VENV: str(tmp_path / "venv"), MYCLOUD: str(tmp_path / "mycloud")}
    Here(tmp_path, folder=clone, words=words, timeout_s=900).block(block)


def test_the_suite_finds_each_bug_of_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adapter in bugs.py has one bug, and names the cases that must fail."""
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


def test_meshd_loads_an_adapter_by_its_entry_point(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "tinycloud")
    package = tmp_path / "meshd_tinycloud-0.1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: meshd-tinycloud\nVersion: 0.1\n")
    (package / "entry_points.txt").write_text("[meshd.providers]\ntiny = tinycloud.adapter:create\n")
    settings = tmp_path / "meshd.toml"
    settings.write_text(
        '[cluster]\nname = "lab"\n[providers.tiny]\nurl = "http://127.0.0.1:9"\nkey = "k"\n'
        '[pools.h100]\ngpu = "h100"\nproviders = ["tiny"]\n'
    )
    command = [sys.executable, "-c", "from meshd.cli.main import main; main()"]
    done = subprocess.run(
        [*command, "--config", str(settings), "config", "check", "-o", "json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    results = {result["name"]: result["status"] for result in json.loads(done.stdout)["checks"]}
    assert results["providers.tiny"] == "ok", done.stdout + done.stderr
