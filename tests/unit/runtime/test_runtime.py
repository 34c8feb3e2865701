"""Programs end with all they started, output is capped, files are whole."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from meshd.errors import CommandError, CommandNotFound, CommandTimeout
from meshd.runtime import run as run_module
from meshd.runtime.atomicfile import write_atomic
from meshd.runtime.run import run


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


async def _until(holds: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + 60
    while not holds() and time.monotonic() < end_s:  # noqa: ASYNC110 - another process is waited for
        await asyncio.sleep(0.01)
    return holds()


async def _ends(pid: int) -> bool:
    return await _until(lambda: not _alive(pid))


async def test_output_code_and_stdin() -> None:
    done = await run(["sh", "-c", "cat; echo err >&2; exit 3"], timeout_s=60, stdin=b"in", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "in", "err\n")
    with pytest.raises(CommandError) as caught:
        await run(["sh", "-c", "echo why >&2; exit 3"], timeout_s=60)
    assert (caught.value.returncode, caught.value.stderr) == (3, "why\n")


async def test_a_program_that_reads_nothing_is_no_error() -> None:
    assert (await run(["true"], timeout_s=60, stdin=b"x" * 1_000_000)).returncode == 0


async def test_no_such_program() -> None:
    with pytest.raises(CommandNotFound):
        await run(["/no/such/program"], timeout_s=60)


async def test_a_line_that_is_too_long_is_an_error_of_ours() -> None:
    with pytest.raises(CommandError):
        await run(["true", "x" * 10_000_000], timeout_s=60)


async def test_a_timeout_ends_the_children_too(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    argv = ["sh", "-c", f"sleep 100 & echo $$ $! > {pids}; wait"]
    for timeout_s in (0.5, 5.0, 50.0):
        with pytest.raises(CommandTimeout):
            await run(argv, timeout_s=timeout_s)
        if pids.exists() and pids.read_text():
            break  # else the shell had not come so far
    for pid in pids.read_text().split():
        assert await _ends(int(pid))


async def test_a_cancelled_call_ends_the_program(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    task = asyncio.create_task(run(["sh", "-c", f"echo $$ > {pid_file}; sleep 100"], timeout_s=600))
    assert await _until(lambda: pid_file.exists() and bool(pid_file.read_text().strip()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await _ends(int(pid_file.read_text()))


async def test_cancelled_while_it_starts_nothing_is_left(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    argv = ["sh", "-c", f"sleep 100 & echo $! > {pid_file}; wait"]
    for turns in (1, 2, 3, 4):
        task = asyncio.create_task(run(argv, timeout_s=600))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)
    await asyncio.sleep(0.2)  # what was started would have told its pid by now
    for pid in pid_file.read_text().split() if pid_file.exists() else ():
        assert await _ends(int(pid))


async def test_output_is_capped_and_the_program_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "OUTPUT_MAX_B", 1000)
    done = await run(["head", "-c", "3000000", "/dev/zero"], timeout_s=60)
    assert len(done.stdout) == 1000
    assert done.returncode == 0


def test_a_file_is_replaced_whole_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"one", mode=0o644)
    write_atomic(path, b"two", mode=0o600)
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["f"]


def test_a_link_stays_and_what_it_points_at_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=str(tmp_path)):
        write_atomic(tmp_path / "pipe", b"x")
    (tmp_path / "dir").mkdir()
    with pytest.raises(OSError, match=str(tmp_path)):
        write_atomic(tmp_path / "dir", b"x")
    assert sorted(os.listdir(tmp_path)) == ["dir", "pipe"]
