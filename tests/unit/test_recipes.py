"""Each recipe has the common form, and its programs are whole."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.recipes import RECIPES, commands

NAMES = sorted(path.name for path in RECIPES.iterdir() if path.is_dir())
SCRIPTS = sorted(RECIPES.glob("*/*.sh"))
PROGRAMS = sorted(RECIPES.glob("*/*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_readme_says_what_to_type(name: str) -> None:
    readme = (RECIPES / name / "README.md").read_text("utf-8")
    assert readme.startswith("# ")
    typed = commands(readme)
    assert [line for line in typed if line.startswith(f"cp -r /usr/local/share/meshd/recipes/{name} ")]
    assert f"[{name}]({name}/README.md)" in (RECIPES / "README.md").read_text("utf-8")


def test_commands_are_the_lines_of_console_blocks_behind_a_prompt() -> None:
    text = "```console\n$ one\nits output\n$ two \\\n>   more\n```\n```sh\n$ not this\n```\n```console\n$ three\n```\n"
    assert commands(text) == ["one", "two more", "three"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_script_is_whole(script: Path) -> None:
    text = script.read_text("utf-8")
    assert text.startswith("#!/bin/")
    if script.name == "job.sh" or "#SBATCH" in text:
        assert text.partition("\n")[2].startswith("#SBATCH ")
        assert re.search(r"^#SBATCH --time=", text, re.M)
    subprocess.run(["bash", "-n", script], check=True, timeout=10)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_program_is_whole(program: Path) -> None:
    tree = ast.parse(program.read_text("utf-8"), feature_version=(3, 9))
    assert ast.get_docstring(tree)


def test_a_file_that_two_recipes_share_is_there_once() -> None:
    seen: dict[bytes, Path] = {}
    for path in sorted(RECIPES.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size:
            assert seen.setdefault(path.read_bytes(), path) == path
        if path.is_symlink():
            assert os.path.commonpath([RECIPES, path.resolve()]) == str(RECIPES)
