"""Runs programs: always an argv list, never a shell, always a deadline, output capped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from meshd.errors import CommandError, CommandNotFound, CommandTimeout

OUTPUT_MAX_B = 64 * 1024 * 1024
KILLED_WAIT_S = 5.0
CHUNK_B = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Result:
    """How a program ended."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class Runner(Protocol):
    """Runs a program. meshd starts programs in no other way."""

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Result:
        """Run `argv` to its end.

        Args:
            argv: program and arguments.
            timeout_s: after this the program and all its children are killed.
            stdin: its input; never in an error or log.
            env: variables in addition to meshd's own (LC_ALL is always C.UTF-8).
            check: raise when it ends with another code than 0.

        Raises:
            CommandNotFound: no such program.
            CommandTimeout: it was killed; its work may be partly done.
            CommandError: the exit code was not 0 and `check` was set.
        """
        ...


async def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> Result:
    """Run a program on this machine. See Runner."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
            start_new_session=True,
        )
    )
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # It may run already: asyncio would end the program but not its children. Wait for its end, or the event loop
        # may be closed first, and nobody reaps it.
        starting.add_done_callback(_kill_started)
        with suppress(OSError):
            await _kill(await asyncio.shield(starting))
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise CommandNotFound(argv[0]) from error
    except OSError as error:
        raise CommandError(list(argv), -1, f"cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(timeout_s):
            out, err, _ = await asyncio.gather(
                _read(process.stdout), _read(process.stderr), _feed(process.stdin, stdin)
            )
            await process.wait()
    except TimeoutError as error:
        await _kill(process)
        raise CommandTimeout(list(argv), timeout_s) from error
    except asyncio.CancelledError:
        await _kill(process)
        raise
    result = Result(
        argv=tuple(argv),
        returncode=process.returncode if process.returncode is not None else -1,
        stdout=out.decode("utf-8", "replace"),
        stderr=err.decode("utf-8", "replace"),
    )
    if check and result.returncode != 0:
        raise CommandError(list(argv), result.returncode, result.stderr or result.stdout)
    return result


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """All output up to the cap. Reads and drops the rest, so that the program does not block."""
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(CHUNK_B)):
        kept += chunk[: OUTPUT_MAX_B - len(kept)]
    return bytes(kept)


async def _feed(stream: asyncio.StreamWriter | None, data: bytes | None) -> None:
    """Write the program's input. A program that does not read all of it is no error."""
    if stream is None or data is None:
        return
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    stream.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        await stream.wait_closed()


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End the program and everything it started: it leads its own session."""
    _kill_group(process)
    # A child that left the session may hold the pipes open: do not wait for it.
    with suppress(TimeoutError):
        async with asyncio.timeout(KILLED_WAIT_S):
            await process.wait()


def _kill_started(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        _kill_group(starting.result())


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
