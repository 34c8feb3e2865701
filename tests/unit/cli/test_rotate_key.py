"""`meshctl rotate-key` against a service in memory."""

from __future__ import annotations

import re

import pytest

from meshd.cli.errors import ExitCode
from tests.clocks import HandClock
from tests.unit.api.memory_desk import MemoryDesk
from tests.unit.api.served import Served
from tests.unit.cli.conftest import Meshctl


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshd.cli.rotations.common.POLL_S", 0.01)


def test_rotate_key_waits_for_the_end(served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("rotate-key")
    assert ran.code == ExitCode.OK, ran.err
    assert "kOLD" in ran.err and "kNEW" in ran.err and "2 nodes confirmed" in ran.err


def test_dry_run_and_status(served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("rotate-key", "--dry-run")
    assert ran.code == ExitCode.OK and re.findall(r"^\d+\.", ran.out, re.M) == ["1.", "2."]
    assert "kOLD" in meshctl("rotate-key", "--status").out
    assert not meshctl("rotate-key", "--status", "-o", "json").json()["id"], "a dry run begins nothing"
    assert meshctl("rotate-key").code == ExitCode.OK
    ran = meshctl("rotate-key", "--status")
    assert "2 of 2 nodes done" in ran.out and "kOLD -> kNEW" in ran.out and "a100-2" in ran.out


def test_json_is_one_document(served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("rotate-key", "-o", "json")
    assert ran.json()["stage"] == "done" and len(ran.json()["nodes"]) == 2


def test_a_node_that_is_away(
    desk: MemoryDesk, served: Served, meshctl: Meshctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshd.runtime.clock.SystemClock", HandClock)  # 500 ms are so many looks
    desk.rotating.away = True
    ran = meshctl("rotate-key", "--timeout", "500ms")
    assert ran.code == ExitCode.TIMED_OUT and "a100-2" in ran.err and "`--waive NODE`" in ran.err
    states = {node["slot"]: node["state"] for node in meshctl("rotate-key", "--status", "-o", "json").json()["nodes"]}
    assert states["a100-2"] == "pending"
    assert meshctl("rotate-key").code == ExitCode.FAILED
    assert meshctl("rotate-key", "--waive", "a100-9").code == ExitCode.USAGE
    assert meshctl("rotate-key", "--waive", "a100-2").code == ExitCode.OK


def test_abort(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    assert meshctl("rotate-key", "--abort").code == ExitCode.FAILED
    desk.rotating.stuck = True
    assert meshctl("rotate-key", "--no-wait").code == ExitCode.OK
    desk.rotating.stuck = False
    ran = meshctl("rotate-key", "--abort", "-o", "json")
    assert (ran.code, ran.json()["stage"], ran.json()["in_use"]["id"]) == (ExitCode.OK, "aborted", "kOLD")


def test_a_key_that_is_refused(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    desk.rotating.refused = "control refuses the key"
    ran = meshctl("rotate-key")
    assert ran.code == ExitCode.FAILED and desk.rotating.refused in ran.err


def test_compromised_asks_first_and_lists_strangers(served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("rotate-key", "--compromised", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (ExitCode.USAGE, "needs_yes")
    ran = meshctl("rotate-key", "--compromised", "--yes", "--since", "2026-11-01")
    assert ran.code == ExitCode.OK and "1 device" in ran.out
    newcomers = meshctl("rotate-key", "--status", "-o", "json").json()["newcomers"]
    assert [one["machine"] for one in newcomers] == [""], "it is no machine of meshd's"
    assert newcomers[0]["hostname"] in ran.out


@pytest.mark.parametrize("since", ["yesterday", "2999-01-01", "2999-01-01T00:00+02:00"])
def test_since_is_a_moment_in_the_past(served: Served, meshctl: Meshctl, since: str) -> None:
    ran = meshctl("rotate-key", "--compromised", "--yes", "--since", since)
    assert ran.code == ExitCode.USAGE and since in ran.err
    assert meshctl("rotate-key", "--compromised", "--yes", "--since", "2026-11-01T08:30+02:00").code == ExitCode.OK


@pytest.mark.parametrize(
    "words", [["--status", "--abort"], ["--reauth", "--waive", "x"], ["--since", "2026-11-01"], ["--abort", "--reauth"]]
)
def test_options_that_do_not_go_together(served: Served, meshctl: Meshctl, words: list[str]) -> None:
    assert meshctl("rotate-key", *words).code == ExitCode.USAGE
