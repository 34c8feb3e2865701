"""`meshctl rotate-key --tokens`."""

from __future__ import annotations

from meshd.cli.errors import ExitCode
from tests.unit.api.memory_desk import MemoryDesk
from tests.unit.api.served import Served
from tests.unit.cli.conftest import Meshctl


def test_question_progress_and_end(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    assert not meshctl("rotate-key", "--tokens", "--status", "-o", "json").json()["id"]
    ran = meshctl("rotate-key", "--tokens", "--dry-run")
    assert ran.code == ExitCode.OK and " 1. " in ran.out and not desk.tokens.view.id
    ran = meshctl("rotate-key", "--tokens", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (ExitCode.USAGE, "needs_yes") and not desk.tokens.view.id
    ran = meshctl("rotate-key", "--tokens", "--yes")
    assert ran.code == ExitCode.OK and "1 done, 1 waiting" in ran.err and "2 done" in ran.out
    view = meshctl("rotate-key", "--tokens", "--status", "-o", "json").json()
    assert [(node["slot"], node["state"]) for node in view["nodes"]] == [("h100-1", "done"), ("h100-2", "done")]


def test_given_nodes_alone_and_one_that_is_off(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    desk.tokens.ends = ["done", "offline"]
    ran = meshctl("rotate-key", "--tokens", "--node", "h100-[3-4]", "--yes")
    assert ran.code == ExitCode.OK and "warning: " in ran.err
    assert desk.tokens.asked[-1].machines == ("h100-3", "h100-4")


def test_one_that_fails_and_one_that_never_ends(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    desk.tokens.ends = ["done", "failed"]
    assert meshctl("rotate-key", "--tokens", "--yes").code == ExitCode.FAILED
    desk.tokens.ends = []
    ran = meshctl("rotate-key", "--tokens", "--yes", "--timeout", "500ms")
    assert ran.code == ExitCode.TIMED_OUT and "--status" in ran.err


def test_compromised_ones_are_locked_out(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    desk.tokens.ends = ["locked_out"]
    ran = meshctl("rotate-key", "--tokens", "--compromised", "--node", "h100-3", "--yes")
    assert ran.code == ExitCode.OK and desk.tokens.view.compromised


def test_options_that_do_not_go_together(served: Served, meshctl: Meshctl) -> None:
    for words in (["--munge"], ["--reauth"], ["--abort"], ["--status", "--dry-run"], ["--waive", "h100-1"]):
        assert meshctl("rotate-key", "--tokens", *words).code == ExitCode.USAGE, words
    assert meshctl("rotate-key", "--node", "h100-1").code == ExitCode.USAGE
