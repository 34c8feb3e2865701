"""`--help`, `meshctl help`, and the error for an unknown command."""

from __future__ import annotations

import pytest

from meshd.cli.errors import ExitCode
from meshd.cli.main import COMMANDS
from tests.unit.cli.conftest import Meshctl


def test_every_command_has_help(meshctl: Meshctl) -> None:
    for name in COMMANDS:
        ran = meshctl(name, "--help")
        assert ran.code == 0
        assert "130 " not in ran.out, "the exit codes have a page of their own"
        assert meshctl("help", name).out == ran.out
    ran = meshctl("--help")
    assert "..." not in ran.out.partition("Commands:")[2], "every summary fits into 80 columns"
    assert "meshctl help exit-codes" in ran.out
    assert meshctl("help").out == ran.out
    assert meshctl("help", "config", "check").out == meshctl("config", "check", "--help").out
    assert meshctl("nonsense").code == 2


def test_the_exit_codes_have_one_page(meshctl: Meshctl) -> None:
    ran = meshctl("help", "exit-codes")
    assert ran.code == 0
    for code in ExitCode:
        assert f"\n  {code.value:<4} " in ran.out


@pytest.mark.parametrize(
    ("words", "hint"), [(["stauts"], "status"), (["config", "chekc"], "check"), (["exit"], "exit-codes")]
)
def test_help_for_an_unknown_name(meshctl: Meshctl, words: list[str], hint: str) -> None:
    ran = meshctl("help", *words)
    assert ran.code == 2 and hint in ran.err


@pytest.mark.parametrize(
    ("typed", "meant"), [("rotate", "rotate-key"), ("offer", "offers"), ("stauts", "status"), ("evnets", "events")]
)
def test_the_error_for_a_mistyped_command_names_similar_ones(meshctl: Meshctl, typed: str, meant: str) -> None:
    ran = meshctl(typed)
    assert ran.code == 2 and f"No such command '{typed}'. Did you mean {meant}?" in ran.err
    assert "Did you mean" not in meshctl("xyzzy").err


@pytest.mark.parametrize("option", ["--config", "--socket"])
def test_the_error_for_an_option_behind_the_command_shows_its_place(meshctl: Meshctl, option: str) -> None:
    for words, command in (
        (["status"], "status"),
        (["logs", "-n", "1"], "logs"),
        (["config", "check"], "config check"),
    ):
        ran = meshctl(*words, option, "/x")
        assert ran.code == 2 and f"meshctl {option} ... {command}" in ran.err
    assert "stands before" not in meshctl("status", "--confg", "/x").err
