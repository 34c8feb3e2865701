"""Programs: argv lists, never a shell, always a deadline."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from .errors import ToolFailed, ToolMissing, ToolTimeout

OUTPUT_MAX = 1024 * 1024
_SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Result:
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str


def search_path() -> str:
    """PATH with the system directories at its end: units and cron run with less."""
    own = os.environ.get("PATH", "")
    return f"{own}:{_SBIN}" if own else _SBIN


def find(program: str) -> str:
    """The program's full path, "" when it is not installed."""
    return shutil.which(program, path=search_path()) or ""


def run(argv: Sequence[str], timeout_s: float, stdin: bytes = b"", check: bool = True) -> Result:
    """Run a program to its end.

    Args:
        argv: program and arguments; no secrets, any local user can read them.
        timeout_s: after this it is killed with all its children.
        stdin: what it reads; kept out of every error.
        check: raise when it ends with another code than 0.

    Raises:
        ToolMissing: not installed.
        ToolTimeout: it was killed.
        ToolFailed: it ended badly and `check` was set.
    """
    program = find(argv[0]) if "/" not in argv[0] else argv[0]
    if not program:
        raise ToolMissing(argv[0])
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C.UTF-8", "PATH": search_path()},
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise ToolMissing(argv[0]) from error
    try:
        out, err = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise ToolTimeout(argv[0], timeout_s) from error
    result = Result(
        process.returncode,
        out[:OUTPUT_MAX].decode("utf-8", "replace"),
        err[:OUTPUT_MAX].decode("utf-8", "replace"),
    )
    if check and result.returncode != 0:
        raise ToolFailed(argv[0], result.returncode, result.stderr or result.stdout)
    return result
