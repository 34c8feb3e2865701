"""meshctl rotate-key against a desk in memory."""

from __future__ import annotations

import pytest

from meshd.cli.exits import Exit
from tests.clocks import HandClock
from tests.unit.api.memory_desk import MemoryDesk
from tests.unit.api.served import Served
from tests.unit.cli.conftest import Meshctl


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshd.cli.follow.POLL_S", 0.01)


def test_it_is_waited_for(served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("rotate-key")
    assert ran.code == Exit.OK, ran.err
    assert "1. mint a key like kOLD" in ran.err and "done: kNEW" in ran.err and "2 nodes confirmed" in ran.err


def test_dry_run_and_status(served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("rotate-key", "--dry-run")
    assert ran.code == Exit.OK and "2. give it to 2 nodes" in ran.out
    ran = meshctl("rotate-key", "--status")
    assert ran.out == "no key was rotated yet; in use: kOLD\n"
    assert meshctl("rotate-key").code == Exit.OK
    ran = meshctl("rotate-key", "--status")
    assert "done, 2 of 2 nodes done" in ran.out and "kOLD -> kNEW" in ran.out and "a100-2" in ran.out


def test_json_is_one_document(served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("rotate-key", "-o", "json")
    assert ran.json()["stage"] == "done" and len(ran.json()["nodes"]) == 2


def test_a_node_that_is_away(
    desk: MemoryDesk, served: Served, meshctl: Meshctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshd.runtime.clock.SystemClock", HandClock)  # 500 ms are so many looks
    desk.rotating.away = True
    ran = meshctl("rotate-key", "--timeout", "500ms")
    assert ran.code == Exit.TIMED_OUT and "waits for a100-2" in ran.err and "--waive NODE" in ran.err
    ran = meshctl("rotate-key", "--status")
    assert "pending" in ran.out and "its agent cannot be reached" in ran.out
    assert meshctl("rotate-key").code == Exit.FAILED
    assert meshctl("rotate-key", "--waive", "a100-9").code == Exit.USAGE
    assert meshctl("rotate-key", "--waive", "a100-2").code == Exit.OK


def test_taken_back(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    assert meshctl("rotate-key", "--abort").code == Exit.FAILED
    desk.rotating.stuck = True
    assert meshctl("rotate-key", "--no-wait").code == Exit.OK
    desk.rotating.stuck = False
    ran = meshctl("rotate-key", "--abort")
    assert ran.code == Exit.OK and "taken back: kOLD is in use" in ran.err


def test_a_key_that_is_refused(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    desk.rotating.refused = "control refuses the key"
    ran = meshctl("rotate-key")
    assert ran.code == Exit.FAILED and "taken back: control refuses the key" in ran.err


def test_compromised_asks_first_and_lists_strangers(served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("rotate-key", "--compromised")
    assert ran.code == Exit.USAGE and "--yes" in ran.err
    ran = meshctl("rotate-key", "--compromised", "--yes", "--since", "2026-11-01")
    assert ran.code == Exit.OK and "born since the key leaked: 1 device, 1 of them nobody's" in ran.out
    assert "NOBODY'S" in ran.out


@pytest.mark.parametrize(
    ("since", "words"),
    [
        ("yesterday", "is no moment: write 2026"),
        ("2999-01-01", "lies ahead"),
        ("2999-01-01T00:00+02:00", "ahead"),
    ],
)
def test_a_leak_has_a_moment_that_has_been(served: Served, meshctl: Meshctl, since: str, words: str) -> None:
    ran = meshctl("rotate-key", "--compromised", "--yes", "--since", since)
    assert ran.code == Exit.USAGE and words in ran.err
    assert meshctl("rotate-key", "--compromised", "--yes", "--since", "2026-11-01T08:30+02:00").code == Exit.OK


@pytest.mark.parametrize(
    "words", [["--status", "--abort"], ["--reauth", "--waive", "x"], ["--since", "2026-11-01"], ["--abort", "--reauth"]]
)
def test_words_that_do_not_go_together(served: Served, meshctl: Meshctl, words: list[str]) -> None:
    assert meshctl("rotate-key", *words).code == Exit.USAGE
