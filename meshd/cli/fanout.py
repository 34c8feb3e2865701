"""One program for each node, many at once: what they print, how they ended, and how all are ended."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

TIMED_OUT: Final = 124
"""The exit code for a command that ran out of time, as of timeout(1)."""
LINE_MAX_B: Final = 64 * 1024
"""A longer line is printed in pieces."""
GATHERED_MAX_B: Final = 4 * 1024 * 1024
"""Of each node; the rest is left out."""
GRACE_S: Final = 3.0

_WRAPPER: Final = """\
exec 3<&0
setsid "${SHELL:-/bin/sh}" -c "$1" </dev/null 3<&- &
command=$!
{ cat <&3; kill -TERM "-$command"; sleep 2; kill -KILL "-$command"; } >/dev/null 2>&1 &
watch=$!
wait "$command"
code=$?
kill "$watch" 2>/dev/null
exit "$code"
"""


def remote_command(words: Sequence[str]) -> str:
    """What a node's shell is given: the command ends there, with all that it has started, when its stdin is closed.

    sshd leaves a command without a terminal alone when its client goes. So the client holds the standard input open,
    and the node ends the command when that is closed: by Ctrl-C, a time-out, or a lost connection.

    Args:
        words: joined by spaces, and read by the node's shell, as ssh does it.
    """
    return f"exec /bin/sh -c {shlex.quote(_WRAPPER)} meshctl {shlex.quote(' '.join(words))}"


@dataclass(frozen=True, slots=True)
class Job:
    """A program to run for a node."""

    name: str
    argv: Sequence[str]


@dataclass(slots=True)
class Ended:
    """How it ended. `output` holds stdout and stderr in their order, where they are gathered."""

    name: str
    code: int
    output: bytes = b""
    cut: bool = False
    timed_out: bool = False


@dataclass
class Fanout:
    """Runs jobs.

    Args:
        at_once: this many at a time.
        timeout_s: for each; None: none.
        out: called with a node's name, which stream (1 or 2) and some of its bytes: whole lines, unless `raw`; None:
            the output is gathered.
        raw: hand bytes on as they come.
    """

    at_once: int
    timeout_s: float | None = None
    out: Callable[[str, int, bytes], None] | None = None
    raw: bool = False

    async def run(self, jobs: Sequence[Job]) -> list[Ended]:
        """Run all; returns how each ended, in their order. A cancellation ends all that run."""
        limit = asyncio.Semaphore(self.at_once)

        async def one(job: Job) -> Ended:
            async with limit:
                return await self._one(job)

        tasks = [asyncio.create_task(one(job)) for job in jobs]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                if not task.cancelling():  # a second time would cut short the end of its program
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def feed(self, name: str, argv: Sequence[str], data: bytes) -> Ended:
        """Run one program with an input; its output is gathered."""
        return await self._one(Job(name, argv), data)

    async def _one(self, job: Job, data: bytes | None = None) -> Ended:
        process = await asyncio.create_subprocess_exec(
            *job.argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        ended = Ended(job.name, 0)
        try:
            async with asyncio.timeout(self.timeout_s):
                if data is not None and process.stdin is not None:
                    process.stdin.write(data)
                    process.stdin.write_eof()
                await asyncio.gather(self._read(process.stdout, 1, ended), self._read(process.stderr, 2, ended))
                ended.code = _exit_code(await process.wait())
        except TimeoutError:
            ended.code, ended.timed_out = TIMED_OUT, True
        finally:
            await _end(process)
        return ended

    async def _read(self, stream: asyncio.StreamReader | None, number: int, ended: Ended) -> None:
        assert stream is not None
        rest = b""
        while data := await stream.read(LINE_MAX_B):
            if self.out is None:
                _gather(ended, data)
            elif self.raw:
                self.out(ended.name, number, data)
            else:
                lines, newline, rest = (rest + data).rpartition(b"\n")
                if newline:
                    self.out(ended.name, number, lines + newline)
                if len(rest) >= LINE_MAX_B:
                    self.out(ended.name, number, rest + b"\n")
                    rest = b""
        if rest and self.out is not None:
            self.out(ended.name, number, rest + b"\n")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close its input, so that the node ends the command; then end the program itself, if it has not ended by then.

    asyncio waits for its pipes too, which a daemon that it has started may hold open: they are closed in the end.
    """
    assert process.stdin is not None
    process.stdin.close()
    try:
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await process.wait()
                    return
    finally:
        process._transport.close()  # type: ignore[attr-defined]  # there is no public way


def _exit_code(returncode: int) -> int:
    """As a shell shows it: 128 and the signal's number."""
    return returncode if returncode >= 0 else 128 - returncode


def _gather(ended: Ended, data: bytes) -> None:
    room = GATHERED_MAX_B - len(ended.output)
    ended.output += data[: max(room, 0)]
    ended.cut |= len(data) > room


def worst(ended: Sequence[Ended]) -> int:
    """The exit code of all: the highest."""
    return max((one.code for one in ended), default=0)
