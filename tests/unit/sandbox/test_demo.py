"""What the demonstration concludes from what it reads."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy.sandbox.demo import checks, report
from deploy.sandbox.demo.cli import PROVIDERS, parser
from deploy.sandbox.demo.screen import Screen
from deploy.sandbox.demo.show import Options, default_gpus
from deploy.sandbox.processes import ProcessId

T0 = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[3]


def event(after_s: float, machine: str, phase: str = "", kind: str = "phase") -> dict[str, Any]:
    fields = {"phase": phase} if phase else {"offer": "aws/us-east-1a/p5.4xlarge"}
    return {"at": (T0 + timedelta(seconds=after_s)).isoformat(), "kind": kind, "machine": machine, "fields": fields}


def test_a_timeline_has_the_first_entry_of_each_phase() -> None:
    events = [
        {"at": T0.isoformat(), "kind": "scale", "machine": "", "fields": {}},
        event(0, "b"),
        event(1, "a"),
        event(2, "a", "launching"),
        event(2.5, "a", kind="munge"),
        event(3, "a", "requested"),
        event(4, "a", "launching"),
        event(5, "a", "booting"),
        event(9, "a", "terminating", kind="failure"),
    ]
    first, second = report.timelines(events)
    assert (first.machine, second.machine) == ("a", "b")
    assert first.span_s("requested", "booting") == 4.0
    assert first.span_s("launching", "booting") == 3.0
    assert first.span_s("booting", "terminating") == 4.0
    assert first.span_s("requested", "ready") is None
    assert second.span_s("requested", "booting") is None


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    phases = [end for _, _, end in report.SPANS] + ["draining"]
    lines = [
        report.Timeline(
            f"lab-h100-{i}-k7q2mz", "paperspace/ny2/H100",
            {"requested": T0} | {phase: T0 + timedelta(seconds=99) for phase in phases},
        )
        for i in range(3, 11)
    ]  # fmt: skip
    out = StringIO()
    Console(file=out, width=80).print(report.machine_table(lines))
    rows = out.getvalue().splitlines()
    assert sum("k7q2mz" in row for row in rows) == 8
    assert out.getvalue().count("paperspace") == 8
    assert "median" in out.getvalue()
    assert "…" not in out.getvalue()


def test_the_ladder_tells_what_each_offer_came_to() -> None:
    gce, aws = "gce/us-central1-a/a3-highgpu-1g/spot", "aws/us-east-1a/p5.4xlarge"

    def told(machine: str, kind: str, **fields: str) -> dict[str, Any]:
        return {"at": T0.isoformat(), "kind": kind, "machine": machine, "fields": fields}

    events = [
        told("a", "phase", phase="requested", offer=gce),
        told("b", "phase", phase="requested", offer=gce),
        told("a", "phase", phase="launching", offer=gce),
        told("a", "failure", phase="gone", offer=gce, refusal="no_capacity"),
        told("b", "phase", phase="booting", offer=gce),
        told("c", "phase", phase="requested", offer=aws),
        told("c", "unclear", offer=aws),
        told("c", "phase", phase="booting", offer=aws),
        told("c", "phase", phase="ready", offer=aws),
    ]
    first, second = report.rungs(events)
    assert (first.offer, first.rented, first.unclear, dict(first.refused)) == (gce, 1, 0, {"no_capacity": 1})
    assert (second.offer, second.rented, second.unclear, dict(second.refused)) == (aws, 1, 1, {})
    refused, spot, _ = report.timelines(events)
    assert (refused.rented, spot.rented, spot.provider) == (False, True, "gce")
    out = StringIO()
    Console(file=out, width=80).print(report.ladder_table([first, second]))
    assert "1 x no capacity" in out.getvalue()
    assert "1 x answer lost" in out.getvalue()


def test_the_job_tells_each_node_s_provider() -> None:
    output = "job 1 of demo on h100-[1-2]\n0: node h100-1\n1: node h100-2\n1: node h100-2 of another text\n"
    rented = {"h100-1": "gce", "h100-2": "aws", "h100-3": "lambda"}
    found = checks.providers_listed(output, rented, ("aws", "gce", "lambda"))
    assert found == {"aws": 1, "gce": 1, "lambda": 0}
    assert checks.not_as_shared_out(found, {"aws": 1, "gce": 1}) == []
    assert checks.not_as_shared_out(found, {"aws": 1, "lambda": 1}) == ["lambda has 0 nodes, not 1"]


def test_resident_memory_is_read_off_proc() -> None:
    assert checks.resident_mib(Path("/proc/self/status").read_text()) > 1
    assert checks.resident_mib("VmPeak:\t  100 kB\nVmRSS:\t  2048 kB\n") == 2.0


def test_only_different_gpus_count() -> None:
    line = "0: GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-{}-5b5f-2d9f-0cbb-7da4e875b22f)\n"
    assert len(checks.gpus_listed(line.format("52f8d34c") * 3 + line.format("34f893ce"))) == 2
    assert checks.gpus_listed("No devices were found\n") == set()


@pytest.mark.parametrize(
    ("row", "free"),
    [
        ("h100-1|idle~|meshd: no job is on it", True),
        ("h100-1|idle~|none", True),
        ("h100-1|idle%|meshd: no job is on it", False),
        ("h100-1|idle#|none", False),
        ("h100-1|drained~|meshd: no capacity", False),
        ("h100-1|mixed~|none", False),
        ("h100-1|down*|meshd: free slot", True),
        ("h100-1|down|meshd: free slot", True),
        ("h100-1|idle|none", False),
        ("h100-1|down*|Not responding", False),
        ("h100-1|drained|meshd: free slot", False),
    ],
)
def test_a_slot_is_free_when_slurm_says_so(row: str, *, free: bool) -> None:
    assert (checks.slots_not_free(row) == []) is free


def test_a_change_of_the_host_is_seen(tmp_path: Path) -> None:
    before = checks.host_state()
    assert checks.changed(before, checks.host_state()) == []
    assert checks.changed(before, before | {"/etc/slurm": "other"}) == ["/etc/slurm has changed"]


def test_a_process_that_is_left_is_a_trace() -> None:
    own = ProcessId.of(os.getpid())
    assert own is not None
    assert checks.traces("nosuchone") == []
    assert checks.traces("nosuchone", [own]) == [f"process {os.getpid()}"]


@pytest.mark.parametrize(
    ("gpus", "per_node", "sandbox_id", "good"),
    [(8, 1, "demo", True), (16, 8, "d2", True), (8, 3, "demo", False), (9, 8, "demo", False), (0, 1, "demo", False),
     (8, 1, "../etc", False)],
)  # fmt: skip
def test_what_cannot_be_shown_is_said_before(gpus: int, per_node: int, sandbox_id: str, *, good: bool) -> None:
    assert (Options(sandbox_id, ("aws",), gpus, per_node, keep=False).problem() == "") is good


def test_several_clouds_have_room_for_their_share_only() -> None:
    names = ("aws", "gce", "lambda")
    assert Options("demo", names, 8, 1, keep=False).room() == {"aws": 3, "gce": 3, "lambda": 2}
    assert Options("demo", names, 48, 8, keep=False).room() == {"aws": 2, "gce": 2, "lambda": 2}
    assert Options("demo", ("aws",), 8, 1, keep=False).room() == {}
    assert "too few" in Options("demo", names, 2, 1, keep=False).problem()
    assert default_gpus(("aws",), 1) == default_gpus(("aws",), 8) == 8
    assert default_gpus(PROVIDERS, 1) == 10
    assert default_gpus(PROVIDERS, 8) == 80


@pytest.mark.parametrize(
    ("words", "providers"),
    [
        ([], ("aws",)),
        (["--provider", "gce"], ("gce",)),
        (["--providers", "gce, lambda,gce"], ("gce", "lambda")),
        (["--providers", ",".join(PROVIDERS)], PROVIDERS),
    ],
)
def test_whose_machines_they_are(words: list[str], providers: tuple[str, ...]) -> None:
    assert parser().parse_args(words).providers == providers


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--provider", "azure"], "there is no provider 'azure'; there are aws, gce"),
        (["--provider", "aws,gce"], "several go to --providers"),
        (["--provider", "aws", "--providers", "gce"], "not allowed with"),
    ],
)
def test_a_wrong_provider_is_told(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(words)
    assert told in capsys.readouterr().err


async def test_a_stage_tells_its_time_and_its_output() -> None:
    out = StringIO()
    screen = Screen(Console(file=out, width=80))
    async with screen.stage("boil water"):
        screen.note("[it] bubbles")
        screen.line("a line of output [as it is]")
    text = out.getvalue()
    assert "boil water ..." in text
    assert "[it] bubbles" in text
    assert "a line of output [as it is]" in text
    assert re.search(r"boil water: done in \d+\.\d s", text)
    assert [title for title, _ in screen.stages] == ["boil water"]


STAYS = """
import sys, time
from pathlib import Path
from deploy.sandbox.demo.keep import in_background
def body(stay):
    print("working", flush=True)
    stay(Path(sys.argv[1]))
    print("to the log", flush=True)
    return 0
sys.exit(in_background(body))
"""

STOPPED = """
import asyncio, sys
from deploy.sandbox.demo.keep import in_background, run_until_stopped
async def work():
    print("working", flush=True)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(0.2)
        print("cleaned up", flush=True)
        return 130
sys.exit(in_background(lambda stay: run_until_stopped(lambda: asyncio.create_task(work()))))
"""


def test_what_stays_lets_go_of_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", STAYS, str(log)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )  # waits until nobody holds the pipes any more
    assert (done.returncode, done.stdout, done.stderr) == (0, "working\n", "")
    assert log.read_text() == "to the log\n"


def test_ctrl_c_twice_waits_for_the_cleaning_up() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "cleaned up\n"
        assert process.wait(60) == 130
