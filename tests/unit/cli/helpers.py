"""What several tests of meshctl use: a fixed time, golden files, meshctl as a process, and a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from click.shell_completion import BashComplete
from rich.console import Console

from meshd.cli.main import cli
from meshd.cli.render.table import Table

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GOLDEN = Path(__file__).parent / "golden"


def golden(name: str, found: str) -> None:
    path = GOLDEN / name
    if os.environ.get("MESHD_UPDATE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


def drawn(width: int, table: Table) -> list[str]:
    buffer = io.StringIO()
    Console(file=buffer, width=width, color_system=None).print(table)
    return [line.rstrip() for line in buffer.getvalue().splitlines()]


def start(socket: Path, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "meshd.cli.main", "--socket", str(socket), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )


def until(true: object, timeout_s: float = 60.0) -> None:
    assert callable(true)
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def on_terminal(socket: Path, argv: list[str], typed: str, **env: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "meshd.cli.main", "--socket", str(socket), *argv],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        close_fds=True,
        preexec_fn=_take_terminal,
        env={"PATH": os.environ["PATH"], "TERM": "xterm-256color", "COLUMNS": "200", "PYTHONPATH": os.getcwd(), **env},
    )
    os.close(theirs)
    shown = b""
    interrupted = False
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.5)[0]:
            try:
                chunk = os.read(ours, 65536)
            except OSError:
                break
            if not chunk:
                break
            shown += chunk
        elif interrupted and b"interrupted" not in shown:
            # A signal between prompt and read is seen only after the read, or never: Python's input() clears what is
            # raised while it flushes stderr. A person who sees nothing happen presses the key once more.
            os.write(ours, b"\x03")
        if typed and b"Go on?" in shown:
            os.write(ours, typed.encode())
            interrupted, typed = typed == "\x03", ""
    os.close(ours)
    return process.wait(60), shown.decode()


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def complete(socket_path: Path, args: list[str], incomplete: str) -> list[str]:
    complete = BashComplete(cli, {}, "meshctl", "_MESHCTL_COMPLETE")
    return [item.value for item in complete.get_completions(["--socket", str(socket_path), *args], incomplete)]
