"""Where meshctl prints, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshd.cli.render.terminal import show
from meshd.cli.session import say


def test_an_error_comes_after_the_table_in_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As `meshctl audit >file 2>&1` has it: the answer is buffered there."""
    both = tmp_path / "both"
    with both.open("a") as out, both.open("a") as err:
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        show("the table")
        say("error: a leak")
        assert both.read_text() == "the table\nerror: a leak\n"
