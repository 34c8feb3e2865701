"""A program with a terminal, and somebody who types."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

READ_BYTES = 1 << 16


class Terminal:
    """The terminal of a program that runs; made by `terminal`."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self._process = process
        self.shown = ""
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._master, READ_BYTES)
        except OSError:  # nobody has the other side open any more
            data = b""
        self.shown += data.decode(errors="replace")
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Change the size; the program is told by SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def see(self, text: str, timeout_s: float = 30.0) -> None:
        """Wait until a text is shown, and forget what was shown up to its end.

        Raises:
            AssertionError: it did not come in time.
        """
        end = asyncio.get_running_loop().time() + timeout_s
        while text not in self.shown:
            assert asyncio.get_running_loop().time() < end, f"{text!r} is not shown: {self.shown!r}"
            await asyncio.sleep(0.02)
        self.shown = self.shown.partition(text)[2]

    async def ended(self, timeout_s: float = 30.0) -> int:
        """Wait until the program ends; its exit status."""
        return await asyncio.to_thread(self._process.wait, timeout_s)

    def close(self) -> None:
        """Hang up."""
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.asynccontextmanager
async def terminal(argv: Sequence[str], rows: int = 24, columns: int = 80) -> AsyncIterator[Terminal]:
    """Run a program that leads a session, with a terminal of its own."""
    master, slave = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    try:
        process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, cwd=Path("/"), start_new_session=True,
            preexec_fn=take_terminal,
        )  # fmt: skip
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(slave)
    shown = Terminal(master, process)
    shown.resize(rows, columns)
    try:
        yield shown
    finally:
        shown.close()
