from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from meshd.api import endpoints
from meshd.api.schema import CheckRow, DoctorView
from meshd.cli.main import COMMANDS
from meshd.model.machine import Removal
from meshd.plaintext import age as age_text
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import NOW, golden

OK = DoctorView(checks=[CheckRow(name="slurm", status="ok", text="24.11.5 answers")])


@pytest.fixture
def one(head: SimHead) -> SimHead:
    """A head with one machine at work. No tick begins."""
    head.grow(1)
    head.frozen = True
    head.world.jobs["a100-1"] = ("4711", 1e9)
    head.do(head.daemon.reconciler.tick)
    head.give(endpoints.DOCTOR, OK)
    return head


def test_golden_status(still: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    golden("status.txt", meshctl("status").out)


def test_golden_nodes(still: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    golden("nodes.txt", meshctl("nodes").out)


def test_golden_plan(still: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    golden("plan.txt", meshctl("plan", "--gpus", "20").out)


def test_json_documents_carry_their_version(one: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    for argv in (["status"], ["nodes"], ["plan"], ["events"], ["doctor"], ["version"], ["drain", "a100-1"]):
        ran = meshctl(*argv, "-o", "json")
        assert ran.code == 0, (argv, ran.err)
        assert ran.json()["schema_version"] == 1, argv


def test_foreign_text_cannot_steer_the_terminal(still: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    still.event("note", "evil \x1b]0;title\x07 text")
    for argv in (["status"], ["nodes"], ["events"]):
        assert "\x1b" not in meshctl(*argv).out


def test_plan_exit_code(one: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    assert meshctl("plan", "--exit-code").code == 0
    assert meshctl("plan", "--gpus", "20", "--exit-code").code == 3
    assert meshctl("plan", "--gpus", "20").code == 0
    assert meshctl("plan", "--pool", "a100").code == 2


def test_drain_remove_and_partly_done(one: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    assert meshctl("drain", "a100-1", "--reason", "fan").code == 0
    assert one.drained("a100-1")
    assert meshctl("undrain", one.machines[0].name).code == 0
    assert not one.drained("a100-1")
    ran = meshctl("drain", "a100-1", "a100-9", "-o", "json")
    assert ran.code == 6
    assert [m["slot"] for m in ran.json()["machines"]] == ["a100-1"]
    assert ran.json()["failed"][0]["machine"] == "a100-9"
    assert meshctl("drain", "a100-11", "a100-12").code == 2
    ran = meshctl("remove", "a100-11", "--yes", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (2, "unknown")
    ran = meshctl("remove", "a100-1")
    assert ran.code == 2
    ran = meshctl("remove", "a100-1", "--yes")
    assert ran.code == 0
    assert "job 4711" in ran.err and one.machines[0].removal is Removal.BY_USER, "it waits for the jobs"
    ran = meshctl("remove", "a100-1", "--force", "--yes")
    assert "job 4711" in ran.err and one.machines[0].removal is Removal.FORCED


def test_events(one: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    machine, before = one.machines[0].name, one.do(one.journal.last_event_id)
    for index in range(5):
        one.event("note", f"number {index}", machine=machine if index % 2 else "")
    assert [line.split("  ")[-1] for line in meshctl("events", "-n", "2").out.splitlines()] == [
        f"{machine}: number 3",
        "number 4",
    ]
    rows = meshctl("events", "--machine", "a100-1", "--kind", "note", "-o", "json").json()["events"]
    assert [row["text"] for row in rows] == ["number 1", "number 3"]
    rows = meshctl("events", "--after", str(before + 4), "-o", "json").json()["events"]
    assert [row["id"] for row in rows] == [before + 5]


def test_events_follow_prints_one_document_a_line(served: SimHead, socket_path: Path) -> None:
    served.frozen = True
    served.event("note", "before")
    process = subprocess.Popen(
        [sys.executable, "-m", "meshd.cli.main", "--socket", str(socket_path), "events", "--follow", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["text"] == "before"
        served.event("note", "after")
        line = json.loads(process.stdout.readline())
        assert (line["text"], line["schema_version"]) == ("after", 1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err


def test_version(served: SimHead, meshctl: Meshctl) -> None:
    assert "slurm      24.11.5" in meshctl("version").out


@pytest.mark.parametrize(
    "argv", [c for c in COMMANDS if c in ("status", "nodes", "plan", "events", "doctor", "version")]
)
def test_unreachable(meshctl: Meshctl, socket_path: Path, argv: str) -> None:
    ran = meshctl(argv)
    assert ran.code == 4
    assert str(socket_path) in ran.err + ran.out
    assert "systemctl" in ran.err + ran.out
    ran = meshctl(argv, "-o", "json")
    assert ran.code == 4
    assert ran.json()["schema_version"] == 1


def test_a_socket_without_a_listener(meshctl: Meshctl, socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path))
    ran = meshctl("status")
    assert ran.code == 4


def test_a_daemon_that_hangs(socket_path: Path) -> None:
    import asyncio

    from meshd.api import endpoints
    from meshd.cli.client import HeadClient
    from meshd.cli.errors import UnreachableError

    async def ask() -> None:
        async with HeadClient(socket_path, timeout_s=0.2) as head:
            await head.call(endpoints.STATUS)

    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(socket_path))
        mute.listen()
        with pytest.raises(UnreachableError):
            asyncio.run(ask())


def test_a_newer_daemon_is_understood(served: SimHead, meshctl: Meshctl) -> None:
    from meshd.api.schema import StatusView

    view = StatusView.model_validate({"schema_version": 7, "cluster": "x", "version": "9", "at": NOW, "new": {"a": 1}})
    assert view.cluster == "x"


def test_the_error_for_a_refused_value_names_its_option(meshctl: Meshctl, served: SimHead) -> None:
    for argv, option in (
        (["drain", "x" * 100], "NODE"),
        (["scale", "--gpus", "10000000"], "--gpus"),
        (["scale", "--gpus", "1", "--max-price", "nan"], "--max-price"),
        (["scale", "--gpus", "1", "--pool", ""], "--pool"),
        (["scale", "--gpus", "1", "--gpu", ""], "--gpu"),
        (["offers", "--region", ""], "--region"),
        (["plan", "--gpus", "1", "--provider", " "], "--provider"),
        (["offers", "--max-price", "inf"], "--max-price"),
    ):
        ran = meshctl(*argv)
        assert ran.code == 2, argv
        assert "Error: " in ran.err and option in ran.err.partition("Error: ")[2], argv


def test_an_empty_answer_differs_from_the_error_for_a_mistyped_name(
    head: SimHead, served: SimHead, meshctl: Meshctl
) -> None:
    ran = meshctl("nodes", "--pool", "a10", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (2, "unknown") and "a100" in ran.json()["cure"]
    ran = meshctl("nodes", "--pool", "a100")
    assert (ran.code, ran.out) == (0, "") and ran.err
    assert meshctl("events").err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0s"), (59.9, "59s"), (60, "1m00s"), (3661, "1h01m"), (90000, "1d1h"), (-5, "0s")],
)
def test_age(seconds: float | None, text: str) -> None:
    assert age_text(seconds) == text
