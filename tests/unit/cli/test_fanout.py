"""Many programs at once: their output, their ends, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from meshd.cli import fanout
from meshd.cli.fanout import GATHERED_MAX_B, LINE_MAX_B, TIMED_OUT, Fanout, Job, remote_command, worst

Said = list[tuple[str, int, bytes]]


def sh(name: str, script: str) -> Job:
    """What ssh and a node's shell make of it."""
    return Job(name, ["/bin/sh", "-c", remote_command([script])])


def alive(file: Path) -> list[int]:
    """Those of the processes whose ids are in the file that run."""
    pids = [int(word) for word in file.read_text().split()] if file.exists() else []
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in state(pid)]


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not fact():  # noqa: ASYNC110  what happens is another process's
            await asyncio.sleep(0.02)


async def until_gone(file: Path) -> None:
    await until(lambda: not alive(file))


async def test_output_comes_by_lines_and_the_worst_code_counts() -> None:
    said: Said = []
    fanout = Fanout(8, out=lambda *one: said.append(one))
    jobs = [
        sh("a", "printf 'one\\ntwo'; echo bad >&2; exit 3"),
        sh("b", "cat; echo 'it'\"'\"'s $HOME'"),
        Job("c", ["/bin/sh", "-c", "kill -9 $$"]),
    ]
    ended = await fanout.run(jobs)
    assert [one.code for one in ended] == [3, 0, 137]
    assert worst(ended) == 137
    assert b"".join(data for name, number, data in said if (name, number) == ("a", 1)) == b"one\ntwo\n"
    assert ("a", 2, b"bad\n") in said
    assert b"".join(data for name, number, data in said if name == "b") == b"it's $HOME\n", "it reads nothing"
    assert worst([]) == 0


async def test_bytes_are_untouched_when_they_are_wanted_raw() -> None:
    said: Said = []
    script = "printf '\\000\\377\\r\\n\\033[31m'; head -c 300000 /dev/zero"
    await Fanout(1, out=lambda *one: said.append(one), raw=True).run([sh("a", script)])
    assert b"".join(data for _, _, data in said) == b"\0\xff\r\n\x1b[31m" + b"\0" * 300_000


async def test_long_lines_and_long_outputs_are_bounded() -> None:
    said: Said = []
    script = f"head -c {3 * LINE_MAX_B} /dev/zero | tr '\\0' x"
    await Fanout(1, out=lambda *one: said.append(one)).run([sh("a", script)])
    assert sum(len(data) for _, _, data in said) >= 3 * LINE_MAX_B
    assert max(len(data) for _, _, data in said) <= 2 * LINE_MAX_B + 1
    (one,) = await Fanout(1).run([sh("a", f"head -c {GATHERED_MAX_B + 1} /dev/zero")])
    assert (len(one.output), one.cut) == (GATHERED_MAX_B, True)


async def test_so_many_run_at_once(tmp_path: Path) -> None:
    script = f"cd {tmp_path}; touch $$; ls | wc -l; sleep 0.1; rm $$"
    ended = await Fanout(2).run([sh(str(number), script) for number in range(6)])
    assert max(int(one.output) for one in ended) <= 2


@pytest.mark.parametrize("stubborn", ["", "trap '' TERM; "])
async def test_a_timeout_ends_the_command_and_its_children_where_they_run(tmp_path: Path, stubborn: str) -> None:
    file = tmp_path / "pids"
    script = f"{stubborn}echo begun; sleep 600 & echo $$ $! >{file}; while :; do sleep 1; done"
    began_s = time.monotonic()
    ended = await Fanout(2, timeout_s=0.5).run([sh("slow", script), sh("quick", "echo done")])
    assert [(one.code, one.timed_out) for one in ended] == [(TIMED_OUT, True), (0, False)]
    assert ended[0].output == b"begun\n"
    assert time.monotonic() - began_s < 60
    await until_gone(file)


async def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(4)]
    jobs = [sh(file.name, f"sleep 600 & echo $$ $! >{file}; wait") for file in files[:3]]
    jobs.append(Job("deaf", ["sh", "-c", f"echo $$ >{files[3]}; exec sleep 600"]))  # its input may close
    running = asyncio.create_task(Fanout(8).run(jobs))
    await until(lambda: all(file.exists() and file.read_text() for file in files))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not alive(files[3])
    for file in files[:3]:
        await until_gone(file)


def test_what_holds_the_output_open_after_the_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that the program has started has its pipes: they are closed here all the same, with no warning."""
    monkeypatch.setattr(fanout, "GRACE_S", 0.2)
    file = tmp_path / "pids"
    job = Job("daemon", ["/bin/sh", "-c", f"setsid sleep 600 & echo $! >{file}; exec sleep 600"])
    (ended,) = asyncio.run(Fanout(1, timeout_s=1.0).run([job]))
    assert (ended.code, ended.timed_out) == (TIMED_OUT, True)
    (daemon,) = alive(file)
    os.kill(daemon, signal.SIGKILL)
    gc.collect()  # what is left unclosed warns here


def test_a_client_that_is_killed_ends_the_command_too(tmp_path: Path) -> None:
    """A lost connection closes the standard input."""
    file = tmp_path / "pids"
    client = subprocess.Popen(
        ["/bin/sh", "-c", remote_command([f"sleep 600 & echo $$ $! >{file}; wait"])], stdin=subprocess.PIPE
    )
    while not (file.exists() and file.read_text()):
        time.sleep(0.02)
    assert client.stdin is not None
    client.stdin.close()
    client.wait(timeout=30)
    asyncio.run(until_gone(file))


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_the_command_is_read_by_the_users_shell(shell: str) -> None:
    environ = {**os.environ, "SHELL": shell}
    argv = [shell, "-c", remote_command(["echo", "$0", "a  b", "'a  b'"])]
    with subprocess.Popen(argv, env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert (client.stdout.read().strip(), client.wait()) == (f"{shell} a b a  b", 0)
