"""Runs the tests in two lanes side by side, and closes with one line over both.

Lane `machines` boots machines and daemons as root, and mostly waits for them: three pytest workers, each with a sandbox
of its own. Lane `rest` mostly computes, in one process. What a lane writes goes to .tests/LANE.log, and its durations
to .tests/LANE.xml (JUnit).
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".tests"
MACHINE_FOLDERS = ("tests/integration", "tests/e2e")
NIGHTLY_TEST_S = 3600
"""The time limit of one test at night."""
MACHINE_WORKERS = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
"""A file is for one worker: its tests share what they boot. Files are taken in the order of tests/conftest.py."""

SLOWEST = 20
WIDTH = 80

COUNTED = {
    "failed": "failed",
    "passed": "passed",
    "skipped": "skipped",
    "xfailed": "xfailed",
    "xpassed": "xpassed",
    "warning": "warning",
    "warnings": "warning",
    "error": "error",
    "errors": "error",
}
"""The words of pytest's closing line, each with the word under which it is added up, in pytest's order."""

CLOSING = re.compile(r"^=* ?((?:\d+ [a-z]+, )*\d+ [a-z]+|no tests ran) in [\d.]+s\b.*$")
USAGE = """\
usage: sudo tests/run                 all tests, in two lanes side by side; about half an hour
       sudo tests/run --nightly       all tests, and all searches in their long form; hours
       tests/run PATHS AND OPTIONS    one pytest with these arguments: tests/unit -k slurm -x
       tests/run -m 'not integration and not e2e'      what needs no root, once .venv is there

Lanes: machines (tests/integration, tests/e2e: need root), rest (all else under tests/). Each lane writes
.tests/LANE.log and .tests/LANE.xml (JUnit, with the durations). The slowest 20 tests of both are shown at the end.
The exit status is 0 only when every lane ran tests and all of them passed. Ctrl-C ends both lanes, which first remove
what they made.
"""


@dataclass(frozen=True)
class Lane:
    """One process beside the others.

    Attributes:
        name: in lower case, for people and for the names of its files.
        argv: what runs.
        tests: whether it is a pytest, which must have run at least one test.
    """

    name: str
    argv: Sequence[str]
    tests: bool = True


@dataclass
class Result:
    """What came of a lane.

    Attributes:
        status: its exit status; negative where a signal ended it.
        counts: the numbers of its closing line, by word.
        report: its last lines, from the summary of skipped and failed tests on.
    """

    lane: Lane
    status: int = 1
    counts: Counter[str] = field(default_factory=Counter)
    report: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether it did all that it should."""
        return self.status == 0 and (not self.lane.tests or self.counts["passed"] > 0)


def pytest_lane(name: str, kept: Path, *arguments: str) -> Lane:
    """A pytest with a cache and a record of durations of its own under `kept`."""
    own = ("-o", f"cache_dir={kept / 'cache' / name}", f"--junitxml={kept / name}.xml", f"--durations={SLOWEST}")
    return Lane(name, (sys.executable, "-m", "pytest", "-q", *own, *arguments))


def lanes_of_all(*arguments: str) -> list[Lane]:
    """The two lanes of a whole run, each with these arguments. A new folder under tests/ belongs to the lane `rest`."""
    ignored = [f"--ignore={folder}" for folder in MACHINE_FOLDERS]
    return [
        pytest_lane("machines", KEPT, *MACHINE_WORKERS, *MACHINE_FOLDERS, *arguments),
        pytest_lane("rest", KEPT, "tests", *ignored, *arguments),
    ]


async def run(lanes: Sequence[Lane], kept: Path = KEPT, out: TextIO = sys.stdout) -> int:
    """Run the lanes side by side, show what they say, and close with one line over all tests; the exit status.

    SIGINT, SIGTERM and SIGHUP reach each lane once, as SIGINT: pytest then takes down what its fixtures made.
    """
    kept.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    processes: list[asyncio.subprocess.Process] = []
    stopped: list[int] = []

    def stop(number: int) -> None:
        if not stopped:
            print("ending all lanes; they remove what they made first", file=out, flush=True)
            for process in processes:
                if process.returncode is None:
                    process.send_signal(signal.SIGINT)
        stopped.append(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    for lane in lanes:
        (kept / f"{lane.name}.xml").unlink(missing_ok=True)
        # A group of its own: the Ctrl-C of a terminal must not reach a lane twice, nor what it started.
        processes.append(
            await asyncio.create_subprocess_exec(
                *lane.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                process_group=0,
                limit=1 << 24,
            )
        )
    width = max(len(lane.name) for lane in lanes)
    results = await asyncio.gather(
        *(_follow(lane, process, kept, width, out) for lane, process in zip(lanes, processes, strict=True))
    )
    _close(results, kept, time.monotonic() - began, out)
    if stopped:
        return 128 + stopped[0]
    return next((abs(result.status) or 1 for result in results if not result.ok), 0)


async def _follow(lane: Lane, process: asyncio.subprocess.Process, kept: Path, width: int, out: TextIO) -> Result:
    """Show a lane's progress line by line, and its report in one piece once it has ended."""
    result = Result(lane)
    report: list[str] = []
    assert process.stdout is not None
    with (kept / f"{lane.name}.log").open("w", encoding="utf-8") as log:
        async for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            print(line, file=log, flush=True)
            if report or line.startswith("======"):
                report.append(line)
            else:
                print(f"{lane.name:<{width}} | {line}", file=out, flush=True)
    result.status = await process.wait()
    for line in report:
        print(line, file=out)
    if lane.tests:
        last = (kept / f"{lane.name}.log").read_text("utf-8").splitlines()
        begins = next((at for at in range(len(last) - 1, -1, -1) if "short test summary" in last[at]), len(last) - 1)
        result.report = last[max(begins, 0) :]
        result.counts = _counts(last)
    print(f"{lane.name:<{width}} | ended with status {result.status}", file=out, flush=True)
    return result


def _counts(lines: Sequence[str]) -> Counter[str]:
    """The numbers of the last line that is a closing line of pytest; none where there is no such line."""
    found = next((match for line in reversed(lines) if (match := CLOSING.match(line))), None)
    counts: Counter[str] = Counter()
    if found is not None:
        for number, word in re.findall(r"(\d+) ([a-z]+)", found[1]):
            if word in COUNTED:
                counts[COUNTED[word]] += int(number)
    return counts


def _close(results: Sequence[Result], kept: Path, took_s: float, out: TextIO) -> None:
    """Write the last lines of each lane, the slowest tests of all, and the line over all."""
    total: Counter[str] = Counter()
    for result in results:
        counts = result.counts
        print(f"\n{f' {result.lane.name} ':-^{WIDTH}}", file=out)
        for line in result.report:
            print(line, file=out)
        if not result.ok:
            print(f"{result.lane.name} failed, with status {result.status}: {kept / result.lane.name}.log", file=out)
            # A lane that broke off, or that ran nothing, must not look well in the line over all.
            if not counts["failed"] and not counts["error"]:
                counts["error"] += 1
        total += counts
    if took := slowest(kept, [result.lane.name for result in results]):
        print(f"\n{f' slowest {len(took)} tests ':=^{WIDTH}}", file=out)
        for seconds, test in took:
            print(f"{seconds:.2f}s {test}", file=out)
    words = ", ".join(_words(total[word], word) for word in dict.fromkeys(COUNTED.values()) if total[word])
    whole = f"{took_s:.2f}s ({time.strftime('%H:%M:%S', time.gmtime(took_s))})"
    print(f"\n{f' {words} in {whole} ':=^{WIDTH}}", file=out, flush=True)


def _words(number: int, word: str) -> str:
    return f"{number} {word}s" if number > 1 and word in ("warning", "error") else f"{number} {word}"


def slowest(kept: Path, names: Sequence[str], most: int = SLOWEST) -> list[tuple[float, str]]:
    """The tests of these lanes that took longest, with set-up and teardown, in seconds; longest first."""
    took = []
    for name in names:
        record = kept / f"{name}.xml"
        if record.exists():
            for case in ElementTree.parse(record).iter("testcase"):
                took.append((float(case.get("time", 0)), f"{case.get('classname')}.{case.get('name')}"))
    return sorted(took, reverse=True)[:most]


def main(arguments: list[str]) -> int:
    """The command line."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    beside = []
    if arguments and arguments[0] == "--beside":
        beside = [Lane("checks", arguments[1:2], tests=False)]
        arguments = arguments[2:]
    tier = ["--nightly", f"--timeout={NIGHTLY_TEST_S}"] if "--nightly" in arguments else []
    selected = [argument for argument in arguments if argument != "--nightly"]
    if selected and not beside:
        os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", *tier, *selected])
    if selected:
        return asyncio.run(run([*beside, pytest_lane("tests", KEPT, *tier, *selected)]))
    if os.geteuid() != 0:
        print("tests: a whole run boots machines and needs root: use sudo, or see tests/run --help", file=sys.stderr)
        return 4
    return asyncio.run(run([*beside, *lanes_of_all(*tier)]))


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
