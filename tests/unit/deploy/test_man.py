"""The man pages have all of --help and docs/configuration.md, and groff reads them without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.man import pages
from meshd.cli.errors import ExitCode
from meshd.cli.main import COMMANDS
from meshd.config import PoolSettings, TimingSettings

ROOT = Path(__file__).resolve().parents[3]
GROFF = shutil.which("groff")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("man")
    program = [sys.executable, "-B", str(ROOT / "deploy/man/pages.py"), str(directory)]
    subprocess.run(program, check=True, timeout=60, cwd=directory)
    return sorted(directory.rglob("*.[158]"))


def shown(page: Path) -> str:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-c", "-rLL=200n", str(page)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == "", page
    return re.sub(r".\x08", "", done.stdout)


def test_the_installer_knows_every_page(written: list[Path]) -> None:
    names = [f"{page.parent.name}/{page.name}" for page in written]
    assert names == ["man1/meshctl.1", "man5/meshd.toml.5", "man8/meshd.8"]
    text = (ROOT / "deploy/head/steps.sh").read_text()
    found = re.search(r"^man_pages='(.*)'$", text, re.M)
    assert found and sorted(found[1].split()) == names, "what is installed is taken away by --uninstall"


@pytest.mark.skipif(GROFF is None, reason="needs groff")
def test_groff_reads_them_without_a_warning_and_they_are_complete(written: list[Path]) -> None:
    meshctl, toml, daemon = map(shown, written)
    for name in COMMANDS:
        assert re.search(rf"^   {name}\b", meshctl, re.M), name
    for code in ExitCode:
        assert re.search(rf"^       {code.value}  +\w", meshctl, re.M), code
    for words in ("config check", "--max-overshoot N", "meshctl offers --gpu h100 ", "-f, --follow"):
        assert words in meshctl, words
    assert "\b" not in meshctl and "\\b" not in meshctl
    for name in (*PoolSettings.model_fields, *TimingSettings.model_fields):
        assert re.search(rf"^       {name}\b", toml, re.M), name
    assert re.search(r"^\[pools\.NAME\]", toml, re.M)
    assert "Needs a restart." in toml and "Applied by a reload." in toml
    assert "`" not in toml and "](" not in toml, "no Markdown is left"
    for words in ("SIGHUP", "--config FILE", "--version", "/etc/meshd/meshd.toml"):
        assert words in daemon
    assert "@VERSION@" not in daemon


@pytest.mark.skipif(GROFF is None, reason="needs groff")
@settings(max_examples=15)
@given(st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8), min_size=1))
def test_text_is_printed_as_it_is(words: list[str]) -> None:
    page = "\n".join(('.TH X 1 "" "1" "y"', ".nf", *(pages.escaped(word) for word in words))) + "\n"
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-c"], input=page, capture_output=True, text=True, timeout=60, check=True
    )
    lines = [line.strip() for line in re.sub(r".\x08", "", done.stdout).splitlines()]
    assert done.stderr == ""
    assert [line for line in lines if line][1:-1] == words


def test_markdown_of_a_line() -> None:
    assert pages.inline("see [tailnet.md](tailnet.md) and `a-b`, **never**") == (
        "see tailnet.md and \\fBa\\-b\\fR, \\fBnever\\fR"
    )
    assert pages.inline(".x").startswith("\\&.")


def test_a_missing_directory_is_an_error() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy/man/pages.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and done.stderr
