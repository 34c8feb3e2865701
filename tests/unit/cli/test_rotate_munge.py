"""`meshctl rotate-key --munge`."""

from __future__ import annotations

import pytest

from meshd.api.endpoints import ABORT_MUNGE_KEY_ROTATION, MUNGE_KEY_ROTATION, ROTATE_MUNGE_KEY, WAIVE_MUNGE_KEY_NODE
from meshd.api.faults import Refused
from meshd.api.schema import MungeNodeRow, MungeRotationView, RotateMungeKeyRequest, WaiveRequest
from meshd.cli.errors import ExitCode
from tests.property.sim import START
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl

NODE = MungeNodeRow(machine="lab-a100-1-x", slot="a100-1", key="aaaa", state="waiting", reason="it is silent")
PREVIEW = MungeRotationView(at=START, key="aaaa", old="aaaa", steps=["make a key"])
BEGUN = MungeRotationView(at=START, key="aaaa", id="r1", stage="stage", active=True, old="aaaa", new="bbbb", by="root")
DONE = BEGUN.model_copy(update={"stage": "done", "active": False, "spread_ms": 210.0, "longest_away_ms": 205.0})


@pytest.fixture(autouse=True)
def rotation(head: SimHead) -> None:
    head.give(ROTATE_MUNGE_KEY, lambda request: PREVIEW if request.dry_run else BEGUN)
    stages = [BEGUN.model_copy(update={"stage": stage}) for stage in ("stage", "switch", "verify")]
    head.give(MUNGE_KEY_ROTATION, *stages, DONE)


def begun(head: SimHead) -> bool:
    return any(not request.dry_run for request in head.asked(ROTATE_MUNGE_KEY))


def test_question_progress_and_end(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    ran = meshctl("rotate-key", "--munge", "--dry-run")
    assert ran.code == ExitCode.OK and " 1. " in ran.out and not begun(head)
    ran = meshctl("rotate-key", "--munge", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (ExitCode.USAGE, "needs_yes") and not begun(head)
    ran = meshctl("rotate-key", "--munge", "--yes")
    assert ran.code == ExitCode.OK and "verify" in ran.err and begun(head)
    assert "aaaa -> bbbb: done" in ran.out and "205 ms" in ran.out
    assert meshctl("rotate-key", "--munge", "--status", "-o", "json").json()["stage"] == "done"


def test_a_node_that_is_away(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    held = BEGUN.model_copy(update={"failure": "waits for lab-a100-1-x", "nodes": [NODE]})
    head.give(MUNGE_KEY_ROTATION, held)
    ran = meshctl("rotate-key", "--munge", "--yes", "--timeout", "500ms")
    assert ran.code == ExitCode.TIMED_OUT and held.failure in ran.err and "--waive" in ran.err
    ran = meshctl("rotate-key", "--munge", "--status")
    assert NODE.slot in ran.out and NODE.reason in ran.out
    head.give(WAIVE_MUNGE_KEY_NODE, BEGUN)
    assert meshctl("rotate-key", "--munge", "--waive", "a100-[1-2]").code == ExitCode.OK
    assert head.asked(WAIVE_MUNGE_KEY_NODE) == [WaiveRequest(machine="a100-1"), WaiveRequest(machine="a100-2")]


def test_what_is_refused_fails(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    for endpoint in (ROTATE_MUNGE_KEY, ABORT_MUNGE_KEY_ROTATION, WAIVE_MUNGE_KEY_NODE):
        head.give(endpoint, Refused("one rotation at a time", "--status"))
    for words in (["--yes"], ["--abort"], ["--waive", "a100-1"]):
        assert meshctl("rotate-key", "--munge", *words).code == ExitCode.FAILED


def test_abort(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    assert meshctl("rotate-key", "--munge", "--yes", "--no-wait").code == ExitCode.OK
    assert head.asked(ROTATE_MUNGE_KEY)[-1] == RotateMungeKeyRequest()
    back = {"stage": "aborted", "active": False, "taken_back": "aborted by root"}
    head.give(ABORT_MUNGE_KEY_ROTATION, BEGUN.model_copy(update=back))
    ran = meshctl("rotate-key", "--munge", "--abort", "-o", "json")
    assert (ran.code, ran.json()["stage"]) == (ExitCode.OK, "aborted")


def test_options_that_do_not_go_together(served: SimHead, meshctl: Meshctl) -> None:
    for words in (["--reauth"], ["--compromised"], ["--status", "--abort"]):
        assert meshctl("rotate-key", "--munge", *words).code == ExitCode.USAGE


def test_foreign_text_cannot_steer_the_terminal(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    evil = "evil \x1b]0;title\x07 [bold]text"
    away = NODE.model_copy(update={"reason": evil})
    head.give(MUNGE_KEY_ROTATION, BEGUN.model_copy(update={"failure": evil, "nodes": [away]}))
    ran = meshctl("rotate-key", "--munge", "--status")
    assert "\x1b" not in ran.out and ran.out.count("[bold]text") == 2
