"""Programs and files that the kernel keeps: every wait ends, nothing is started beside what hangs, nothing leaks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.node.meshd_node import bounded, facts, files, gpu, processes, tools
from deploy.node.meshd_node.errors import NodeError, ToolHangs, ToolTimeout
from deploy.node.meshd_node.paths import Paths
from tests.unit.node.standins import program

STUCK = """
echo "$$" >> "{log}"
[ -e "{bad}" ] || {{ echo "0, 37, 1024"; exit 0; }}
setsid sh -c 'trap "" TERM; while [ -e "{bad}" ]; do sleep 0.05; done' &
exec sleep 600
"""
"""While `bad` exists, a child that no kill of the group reaches holds the pipes, as a process in state D does."""

SOON_S = 30.0


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A nvidia-smi that hangs while `bad` is there; its starts are in `starts`."""
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "nvidia-smi", STUCK.format(log=tmp_path / "starts", bad=tmp_path / "bad"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(tools, "_hanging", {})
    monkeypatch.setattr(tools, "KILL_WAIT_S", 0.3)
    yield tmp_path
    (tmp_path / "bad").unlink(missing_ok=True)
    wait_for(lambda: all(one.over() for one in tools._hanging.values()))


def starts(directory: Path) -> int:
    path = directory / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def pipes() -> int:
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += os.readlink(fd).startswith("pipe:")
    return found


def wait_for(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_program_that_does_not_end_is_left_alone_until_it_has(smi: Path) -> None:
    before, threads = pipes(), threading.active_count()
    (smi / "bad").touch()
    began_s = time.monotonic()
    with pytest.raises(ToolTimeout):
        tools.run(["nvidia-smi"], 0.3)
    for _ in range(5):
        with pytest.raises(ToolHangs):
            tools.run(["nvidia-smi", "-L"], 600)
    assert time.monotonic() - began_s < SOON_S, "no wait is without an end"
    assert starts(smi) == 1, "never a second one beside it"
    assert (pipes() - before, threading.active_count()) == (2, threads)
    (smi / "bad").unlink()

    def again() -> bool:
        with suppress(ToolHangs):
            return "37" in tools.run(["nvidia-smi"], SOON_S).stdout
        return False

    wait_for(again)
    assert starts(smi) == 2
    assert pipes() == before
    assert not tools._hanging


def test_a_program_that_dies_of_the_kill_is_forgotten_at_once(smi: Path) -> None:
    program(smi / "bin", "nvidia-smi", f'echo "$$" >> "{smi / "starts"}"; trap "" TERM; while :; do sleep 0.1; done\n')
    before = pipes()
    for _ in range(2):
        with pytest.raises(ToolTimeout) as caught:
            tools.run(["nvidia-smi"], 0.3)
        assert not isinstance(caught.value, ToolHangs)
    assert starts(smi) == 2
    assert pipes() == before
    for pid in (smi / "starts").read_text().split():
        assert not Path(f"/proc/{pid}").exists(), "no zombie"


def test_one_that_never_stops_to_talk_is_ended_too(smi: Path) -> None:
    program(smi / "bin", "nvidia-smi", 'exec yes "no devices"\n')
    with pytest.raises(ToolTimeout):
        tools.run(["nvidia-smi"], 0.3)
    assert not tools._hanging


def test_the_load_watch_tells_of_a_gpu_that_hangs_and_of_its_return(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = gpu.LoadWatch()
    watch.look()
    assert watch.last() == ([{"index": 0, "utilization_percent": 37, "memory_used_mib": 1024}], "")
    (smi / "bad").touch()
    monkeypatch.setattr(gpu, "NVIDIA_TIMEOUT_S", 0.3)
    for _ in range(3):
        watch.look()
        seen, fault = watch.last()
        assert (seen, starts(smi)) == ([], 2), "no old load stands for a new one, and nothing is started beside it"
        assert "nvidia-smi" in fault
    monkeypatch.setattr(gpu, "NVIDIA_TIMEOUT_S", SOON_S)
    (smi / "bad").unlink()

    def back() -> bool:
        watch.look()
        return watch.last()[1] == ""

    wait_for(back)
    assert watch.last()[0]


def test_the_look_at_the_machine_ends_and_names_the_program(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "NVIDIA_TIMEOUT_S", 0.3)
    (smi / "bad").touch()
    for _ in range(2):
        with pytest.raises(NodeError) as caught:
            facts.gather(Paths(smi), lambda: 0.0, systemd=True, tun=True)
        assert "nvidia-smi" in str(caught.value)
    assert starts(smi) == 1


def test_work_that_hangs_is_begun_once(tmp_path: Path) -> None:
    gate, begun = threading.Event(), []

    def work() -> int:
        begun.append(1)
        gate.wait()
        return 7

    threads = threading.active_count()
    for _ in range(5):
        with pytest.raises(bounded.Hangs):
            bounded.within("a share", work, 0.05)
    assert (len(begun), threading.active_count() - threads) == (1, 1)
    gate.set()
    wait_for(lambda: threading.active_count() == threads)
    assert bounded.within("a share", work, SOON_S) == 7
    with pytest.raises(FileNotFoundError):
        bounded.within("a file", (tmp_path / "none").read_bytes, SOON_S)
    assert not bounded._stuck


def test_a_job_whose_title_cannot_be_read_is_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of the command line of a process that hangs in a page fault hangs with it."""
    monkeypatch.setattr(processes, "TITLE_S", 0.1)
    (tmp_path / "77").mkdir()
    (tmp_path / "77/comm").write_text("slurmstepd\n")
    os.mkfifo(tmp_path / "77/cmdline")
    for _ in range(3):
        assert processes.look(tmp_path).jobs == {"pid77"}, "the machine is not powered off under it"
    writer = os.open(tmp_path / "77/cmdline", os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"slurmstepd: [12.batch]")
    os.close(writer)


@pytest.mark.parametrize(
    ("comm", "is_slurmd"), [("slurmd", True), ("slurmd-wlm", True), ("slurmstepd", False), ("slurmdbd", False)]
)
def test_slurmd_by_its_name(tmp_path: Path, comm: str, is_slurmd: bool) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77/comm").write_text(f"{comm}\n")
    (tmp_path / "77/cmdline").write_bytes(b"x\0")
    assert processes.look(tmp_path).slurmd == is_slurmd


def test_a_lock_is_not_waited_for_without_an_end(tmp_path: Path) -> None:
    with files.locked(tmp_path), pytest.raises(OSError, match="locked"), files.locked(tmp_path, 0.1):
        pass
    with files.locked(tmp_path, 0.1):
        pass
