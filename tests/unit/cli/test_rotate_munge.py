"""`meshctl rotate-key --munge`."""

from __future__ import annotations

from meshd.api.schema import MungeNodeRow
from meshd.cli.errors import ExitCode
from tests.unit.api.memory_desk import MemoryDesk
from tests.unit.api.served import Served
from tests.unit.cli.conftest import Meshctl

NODE = MungeNodeRow(machine="lab-a100-1-x", slot="a100-1", key="aaaa", state="waiting", reason="it is silent")


def test_question_progress_and_end(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    ran = meshctl("rotate-key", "--munge", "--dry-run")
    assert ran.code == ExitCode.OK and " 1. " in ran.out and not desk.munge.view.id
    ran = meshctl("rotate-key", "--munge", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (ExitCode.USAGE, "needs_yes") and not desk.munge.view.id
    ran = meshctl("rotate-key", "--munge", "--yes")
    assert ran.code == ExitCode.OK and "verify" in ran.err
    assert "aaaa -> bbbb: done" in ran.out and "205 ms" in ran.out
    assert meshctl("rotate-key", "--munge", "--status", "-o", "json").json()["stage"] == "done"


def test_a_node_that_is_away(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    desk.munge.view = desk.munge.view.model_copy(update={"failure": "waits for lab-a100-1-x", "nodes": [NODE]})
    ran = meshctl("rotate-key", "--munge", "--yes", "--timeout", "500ms")
    assert ran.code == ExitCode.TIMED_OUT and desk.munge.view.failure in ran.err and "--waive" in ran.err
    ran = meshctl("rotate-key", "--munge", "--status")
    assert NODE.slot in ran.out and NODE.reason in ran.out
    assert meshctl("rotate-key", "--munge", "--yes").code == ExitCode.FAILED
    assert meshctl("rotate-key", "--munge", "--waive", "a100-1").code == ExitCode.OK and desk.munge.view.failure == ""


def test_abort(desk: MemoryDesk, served: Served, meshctl: Meshctl) -> None:
    assert meshctl("rotate-key", "--munge", "--abort").code == ExitCode.FAILED
    assert meshctl("rotate-key", "--munge", "--yes", "--no-wait").code == ExitCode.OK
    ran = meshctl("rotate-key", "--munge", "--abort", "-o", "json")
    assert (ran.code, ran.json()["stage"]) == (ExitCode.OK, "aborted")


def test_options_that_do_not_go_together(served: Served, meshctl: Meshctl) -> None:
    for words in (["--reauth"], ["--compromised"], ["--status", "--abort"]):
        assert meshctl("rotate-key", "--munge", *words).code == ExitCode.USAGE
