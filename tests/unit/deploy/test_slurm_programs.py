"""The programs that slurmctld runs on the head: never late, never in the way, whatever meshd does."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ROOT / "deploy/head/programs"
NAMES = ("slurm-resume", "slurm-suspend", "prolog-slurmctld")
AT_ONCE_S = 2.0
"""A loaded machine takes its time to start a program."""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "prolog").mkdir()
    (tmp_path / "etc").mkdir()
    return tmp_path


@pytest.fixture
def limit(run_dir: Path) -> Path:
    """What meshd touches while it lives."""
    file = run_dir / "prolog-limit-s"
    file.write_text("3600\n")
    return file


def program(name: str, run_dir: Path, **settings: int) -> Path:
    """The program with other paths and times."""
    text = (PROGRAMS / name).read_text().replace("/run/meshd", str(run_dir)).replace("/etc/meshd", f"{run_dir}/etc")
    for key, value in settings.items():
        text, count = re.subn(rf"^{key}=\d+", f"{key}={value}", text, flags=re.M)
        assert count == 1, key
    place = run_dir / name
    place.write_text(text)
    place.chmod(0o755)
    return place


def job(path: Path, **env: str) -> subprocess.Popen[bytes]:
    """As slurmctld starts it: without a PATH, in a process group of its own."""
    values = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h100-[1-2]", "SLURM_JOB_UID": "1000", **env}
    return subprocess.Popen([path], env=values, start_new_session=True)


@contextmanager
def bell(run_dir: Path, *, heard: bool = True) -> Iterator[int]:
    """The FIFO that meshd holds open. It ends without a reader when meshd is gone."""
    os.mkfifo(run_dir / "bell")
    fd = os.open(run_dir / "bell", os.O_RDWR | os.O_NONBLOCK) if heard else -1
    try:
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def gates(run_dir: Path) -> list[Path]:
    return list((run_dir / "prolog").iterdir())


def release(run_dir: Path) -> bool:
    """What meshd does. False: the program is between two looks."""
    (gate,) = gates(run_dir)
    try:
        fd = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    gate.unlink()
    os.close(fd)
    return True


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
@pytest.mark.parametrize("name", NAMES)
def test_the_programs_are_clean(name: str) -> None:
    done = subprocess.run(["shellcheck", PROGRAMS / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_without_meshd_each_ends_well_at_once(name: str, run_dir: Path) -> None:
    path = program(name, run_dir)
    began_s = time.monotonic()
    assert job(path).wait(10) == 0
    with bell(run_dir, heard=False):
        assert job(path).wait(10) == 0
    assert time.monotonic() - began_s < AT_ONCE_S
    assert gates(run_dir) == []
    assert sorted(entry.name for entry in run_dir.iterdir()) == sorted(["bell", "etc", name, "prolog"])


@pytest.mark.parametrize("age_s", [61, 86400, -3600])
def test_where_meshd_has_long_been_silent_a_prolog_ends_at_once(age_s: int, run_dir: Path, limit: Path) -> None:
    """It hangs, or it ends again and again as soon as it is started."""
    path = program("prolog-slurmctld", run_dir)
    os.utime(limit, (time.time() - age_s,) * 2)
    with bell(run_dir, heard=False):
        began_s = time.monotonic()
        assert job(path).wait(10) == 0
    assert time.monotonic() - began_s < AT_ONCE_S
    assert gates(run_dir) == []


def test_a_prolog_that_comes_while_meshd_restarts_waits_for_it(run_dir: Path, limit: Path) -> None:
    path = program("prolog-slurmctld", run_dir, look_s=1)
    process = job(path)
    until(lambda: bool(gates(run_dir)))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    with bell(run_dir) as fd:

        def heard() -> bool:
            with suppress(BlockingIOError):
                return os.read(fd, 4096) == f"7.{process.pid} h100-[1-2] 1000\n".encode()
            return False

        until(heard)
        until(lambda: release(run_dir))
        assert process.wait(10) == 0


def test_a_prolog_ends_when_meshd_is_stopped(run_dir: Path, limit: Path) -> None:
    """systemd removes the directory then."""
    path = program("prolog-slurmctld", run_dir, look_s=1)
    process = job(path)
    until(lambda: bool(gates(run_dir)))
    shutil.rmtree(run_dir)
    assert process.wait(10) == 0
    assert not run_dir.exists()


@pytest.mark.parametrize("said", ["0", "1"])
def test_a_prolog_ends_before_slurmctld_would_end_it(said: str, run_dir: Path, limit: Path) -> None:
    path = program("prolog-slurmctld", run_dir, look_s=1)
    limit.write_text(f"{said}\n")
    with bell(run_dir):
        assert job(path).wait(10) == 0
    assert gates(run_dir) == []


@pytest.mark.parametrize("said", ["", "x", "-1", "$(id)", "1000000"])
def test_a_limit_that_is_none_counts_for_nothing(said: str, run_dir: Path, limit: Path) -> None:
    path = program("prolog-slurmctld", run_dir)
    limit.write_text(f"{said}\n")
    with bell(run_dir):
        process = job(path)
        until(lambda: bool(gates(run_dir)))
        until(lambda: release(run_dir))
        assert process.wait(10) == 0


@pytest.mark.parametrize("name", ["slurm-resume", "slurm-suspend"])
def test_a_bell_that_is_full_delays_nothing(name: str, run_dir: Path) -> None:
    path = program(name, run_dir)
    with bell(run_dir) as fd:
        assert subprocess.run([path, "h100-[1-2]"], env={}, timeout=10, check=False).returncode == 0
        assert os.read(fd, 100) == b"\n"
        with pytest.raises(BlockingIOError):
            while True:
                os.write(fd, b"x" * 4096)
        began_s = time.monotonic()
        assert subprocess.run([path, "h100-[1-2]"], env={}, timeout=10, check=False).returncode == 0
        assert time.monotonic() - began_s < AT_ONCE_S


def test_a_prolog_waits_until_meshd_opens_the_other_side(run_dir: Path, limit: Path) -> None:
    path = program("prolog-slurmctld", run_dir)
    with bell(run_dir) as fd:
        process = job(path)
        until(lambda: bool(gates(run_dir)))
        (gate,) = gates(run_dir)
        assert (gate.name, gate.stat().st_mode & 0o777) == (f"7.{process.pid}", 0o600)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert os.read(fd, 4096) == f"7.{process.pid} h100-[1-2] 1000\n".encode()
        until(lambda: release(run_dir))
        assert process.wait(10) == 0
    assert gates(run_dir) == []


def test_a_task_of_an_array_has_the_name_that_squeue_shows(run_dir: Path, limit: Path) -> None:
    path = program("prolog-slurmctld", run_dir)
    with bell(run_dir):
        process = job(path, SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="12")
        until(lambda: bool(gates(run_dir)))
        assert gates(run_dir)[0].name == f"5_12.{process.pid}"
        until(lambda: release(run_dir))
        assert process.wait(10) == 0


def test_a_prolog_says_again_what_it_waits_for(run_dir: Path, limit: Path) -> None:
    """A meshd that has been started meanwhile learns it."""
    path = program("prolog-slurmctld", run_dir, look_s=1)
    with bell(run_dir) as fd:
        process = job(path)
        heard: list[bytes] = []

        def twice() -> bool:
            try:
                heard.extend(os.read(fd, 4096).splitlines())
            except BlockingIOError:
                return False
            return len(heard) >= 2

        until(twice)
        assert len(set(heard)) == 1
        until(lambda: release(run_dir))
        assert process.wait(10) == 0


def heard_of(run_dir: Path, **environment: str) -> bytes:
    """What meshd hears of a job with this environment, without the job's number and the process."""
    path = program("prolog-slurmctld", run_dir)
    with bell(run_dir) as fd:
        process = job(path, **environment)
        until(lambda: bool(gates(run_dir)))
        until(lambda: release(run_dir))
        assert process.wait(10) == 0
        heard, begins = os.read(fd, 8192), f"7.{process.pid} ".encode()
        assert heard.startswith(begins)
        return heard.removeprefix(begins)


@pytest.mark.parametrize("nodes", ["x" * 4001, "a b", "a\nb", "$(id)", ""])
def test_a_list_of_nodes_that_does_not_fit_is_left_to_meshd(nodes: str, run_dir: Path, limit: Path) -> None:
    assert heard_of(run_dir, SLURM_JOB_NODELIST=nodes) == b" 1000\n"


@pytest.mark.parametrize("uid", ["", "-1", "1 2", "12345678901", "x"])
def test_what_is_no_number_of_a_user_is_left_out(uid: str, run_dir: Path, limit: Path) -> None:
    assert heard_of(run_dir, SLURM_JOB_UID=uid) == b"h100-[1-2] \n"


@pytest.mark.parametrize("name", ["", "x", "../7", "7 8"])
def test_what_is_no_job_waits_for_nothing(name: str, run_dir: Path, limit: Path) -> None:
    path = program("prolog-slurmctld", run_dir)
    with bell(run_dir):
        assert job(path, SLURM_JOB_ID=name).wait(10) == 0


@pytest.mark.parametrize("heard", [True, False])
def test_a_prolog_gives_up_when_meshd_does_not_come_back(heard: bool, run_dir: Path, limit: Path) -> None:
    """Nobody listens, or what holds the bell hangs."""
    path = program("prolog-slurmctld", run_dir, look_s=1, silent_s=3, misses_max=2)
    with bell(run_dir, heard=heard):
        assert job(path).wait(20) == 0
    assert gates(run_dir) == []


def test_a_clock_that_is_set_does_not_end_the_wait(run_dir: Path, limit: Path) -> None:
    path = program("prolog-slurmctld", run_dir, look_s=1)
    with bell(run_dir) as fd:
        process = job(path)
        until(lambda: bool(gates(run_dir)))
        os.utime(limit, (time.time() - 3600,) * 2)  # as the file looks when the clock was set an hour ahead
        for _ in range(3):

            def rung() -> bool:
                with suppress(BlockingIOError):
                    return bool(os.read(fd, 4096))
                return False

            until(rung)
        limit.touch()
        for _ in range(3):
            until(rung)
        until(lambda: release(run_dir))
        assert process.wait(10) == 0


def test_a_prolog_has_an_end(run_dir: Path, limit: Path) -> None:
    path = program("prolog-slurmctld", run_dir, look_s=1, limit_s=1)
    limit.write_text("x\n")
    with bell(run_dir):
        assert job(path).wait(20) == 0
    assert gates(run_dir) == []


def test_a_prolog_that_slurmctld_ends_leaves_nothing(run_dir: Path, limit: Path) -> None:
    path = program("prolog-slurmctld", run_dir)
    with bell(run_dir):
        process = job(path)
        until(lambda: bool(gates(run_dir)))
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0
    assert gates(run_dir) == []


@pytest.mark.parametrize("heard", [True, False])
def test_the_sites_own_prolog_runs_afterwards_and_its_status_counts(heard: bool, run_dir: Path, limit: Path) -> None:
    path = program("prolog-slurmctld", run_dir)
    if not heard:
        limit.unlink()
    own = run_dir / "own"
    own.write_text(f"#!/bin/sh\necho $SLURM_JOB_ID ${{PATH+set}} >{run_dir}/ran\nexit 3\n")
    own.chmod(0o755)
    (run_dir / "etc/prolog-slurmctld").write_text(f"{own}\n")
    with bell(run_dir, heard=heard):
        process = job(path)
        if heard:
            until(lambda: bool(gates(run_dir)))
            assert not (run_dir / "ran").exists()
            until(lambda: release(run_dir))
        assert process.wait(10) == 3
    assert (run_dir / "ran").read_text().split()[0] == "7"
