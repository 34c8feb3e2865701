"""Runs other programs: argv lists only, always with a deadline, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Result:
    """What a program that ended left: its exit status and both of its outputs."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text, without white space around it."""
        return self.stdout.decode(errors="replace").strip()


class CommandError(RuntimeError):
    """A program ended with a status other than 0, or ran out of time (`returncode` is then None)."""

    def __init__(self, argv: Sequence[str], returncode: int | None, output: str) -> None:
        self.argv = tuple(argv)
        self.returncode = returncode
        self.output = output
        ended = "ran out of time" if returncode is None else f"ended with status {returncode}"
        super().__init__(f"{' '.join(argv[:6])} {ended}: {output.strip()[-_TAIL_BYTES:] or 'no output'}")


async def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    log: Path | None = None,
) -> Result:
    """Run a program to its end and return what it printed.

    The program leads a process group of its own; when the deadline passes or the caller is cancelled, the whole group
    is killed before this function returns.

    Args:
        argv: program and arguments; no shell is involved.
        timeout_s: deadline in seconds.
        stdin: bytes that the program reads from standard input.
        cwd: working directory; None keeps the caller's.
        env: the complete environment; None keeps the caller's.
        check: raise when the exit status is not 0.
        log: a file that both outputs are appended to instead of being returned (for long builds).

    Raises:
        CommandError: the deadline passed, or the exit status was not 0 and `check` is set.
        OSError: the program could not be started at all.
    """
    words = [str(word) for word in argv]
    with contextlib.ExitStack() as stack:
        sink = asyncio.subprocess.PIPE if log is None else stack.enter_context(log.open("ab"))
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=sink,
            stderr=asyncio.subprocess.PIPE if log is None else asyncio.subprocess.STDOUT,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin), timeout_s)
    except TimeoutError as error:
        raise CommandError(words, None, _tail(log)) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    result = Result(tuple(words), process.returncode or 0, out or b"", err or b"")
    if check and result.returncode != 0:
        output = _tail(log) or (result.stderr or result.stdout).decode(errors="replace")
        raise CommandError(words, result.returncode, output)
    return result


def _tail(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace")
