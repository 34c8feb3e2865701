"""Runs programs: always an argv list, never a shell, always a deadline."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

from .errors import ToolFailed, ToolHangs, ToolMissing, ToolTimeout

OUTPUT_MAX = 1024 * 1024
KILL_WAIT_S = 0.5
"""How long to wait for a killed program. A program in state D (waiting for a dead GPU or disk) ends only when the
device answers; no signal reaches it."""
_SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Result(NamedTuple):
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str


@dataclass
class _Hanging:
    """A killed program that has not ended, or whose children hold its pipes."""

    process: subprocess.Popen[bytes]
    pipes: list[IO[bytes]] = field(default_factory=list)

    def over(self) -> bool:
        """Whether it and its children have ended. Drains its output, so that it can end."""
        for pipe in list(self.pipes):
            if _at_end(pipe):
                pipe.close()
                self.pipes.remove(pipe)
        return self.process.poll() is not None and not self.pipes


_hanging: dict[str, _Hanging] = {}
_lock = threading.Lock()


_around: list[Callable[[str], AbstractContextManager[None]]] = []


def use_around(context: Callable[[str], AbstractContextManager[None]]) -> None:
    """Enter this context, which gets the program's name, around each program that this process runs."""
    _around[:] = [context]


def around(program: str) -> AbstractContextManager[None]:
    """The context for a program that is not started by `run`."""
    return _around[0](program) if _around else nullcontext()


def search_path() -> str:
    """PATH, with the system directories at its end: units and cron lack some."""
    own = os.environ.get("PATH", "")
    return f"{own}:{_SBIN}" if own else _SBIN


def find(program: str) -> str:
    """The program's full path; "" when it is not installed."""
    return shutil.which(program, path=search_path()) or ""


def run(argv: Sequence[str], timeout_s: float, stdin: bytes = b"", check: bool = True) -> Result:
    """Run a program to its end.

    It returns within `timeout_s` plus KILL_WAIT_S, whatever the program does. A program that survives SIGKILL is not
    started again before it has ended: the next one would hang too.

    Args:
        argv: program and arguments. No secrets: every local user can read them.
        timeout_s: after this the program and all its children are killed.
        stdin: its input; never in an error.
        check: raise when its exit code is not 0.

    Raises:
        ToolMissing: not installed.
        ToolTimeout: it was killed.
        ToolHangs: an earlier run still hangs.
        ToolFailed: the exit code was not 0 and `check` was set.
    """
    program = find(argv[0]) if "/" not in argv[0] else argv[0]
    if not program:
        raise ToolMissing(argv[0])
    with around(os.path.basename(program)):  # noqa: PTH119
        return _run(program, argv, timeout_s, stdin, check)


def _run(program: str, argv: Sequence[str], timeout_s: float, stdin: bytes, check: bool) -> Result:
    with _lock:
        before = _hanging.get(program)
        if before is not None and not before.over():
            raise ToolHangs(argv[0], before.process.pid)
        _hanging.pop(program, None)
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
        _end(program, process)
        raise ToolTimeout(argv[0], timeout_s) from error
    result = Result(
        process.returncode,
        out[:OUTPUT_MAX].decode("utf-8", "replace"),
        err[:OUTPUT_MAX].decode("utf-8", "replace"),
    )
    if check and result.returncode != 0:
        raise ToolFailed(argv[0], result.returncode, result.stderr or result.stdout)
    return result


def _end(program: str, process: subprocess.Popen[bytes]) -> None:
    """Kill it with its children, wait KILL_WAIT_S, and remember it when it has not ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.communicate(timeout=KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        left = _Hanging(process, [pipe for pipe in (process.stdout, process.stderr) if pipe is not None])
        for pipe in left.pipes:
            os.set_blocking(pipe.fileno(), False)
        with _lock:
            _hanging[program] = left


def _at_end(pipe: IO[Any]) -> bool:
    """Whether no process holds the other end."""
    try:
        while os.read(pipe.fileno(), 65536):
            pass
    except BlockingIOError:
        return False
    except (OSError, ValueError):
        return True
    return True
