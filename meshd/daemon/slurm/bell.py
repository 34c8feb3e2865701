"""The bell: a FIFO by which programs that slurmctld runs have meshd look at Slurm now (deploy/head/programs).

Nothing is decided by what arrives. A ring that is lost or doubled changes nothing: Slurm is read regularly too.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from meshd.daemon.controller import Controller
from meshd.errors import SlurmError
from meshd.runtime.clock import Clock

NAME = "bell"
CHUNK_B = 65536
"""The capacity of a pipe."""
SPACING_S = 0.5
"""The least time between two looks at Slurm for rings of ResumeProgram and SuspendProgram."""
LOOK_S = 30.0
"""How often it is seen to that the FIFO is still there."""


class Bell(Controller):
    """Holds the FIFO open, so that writing to it never blocks.

    Args:
        directory: meshd's runtime directory.
        look: has Slurm read now.
        heard: takes the lines of prologs.
        clock: time.
    """

    name = "bell"

    def __init__(
        self, directory: Path, look: Callable[[], None], heard: Callable[[list[str]], None], clock: Clock
    ) -> None:
        super().__init__(clock)
        self.path = directory / NAME
        self._look, self._heard = look, heard
        self._fd = -1
        self._rung = False

    async def reconcile(self) -> float:
        """Open the FIFO where it is not open, and have Slurm read when it was rung."""
        self._open()
        self._read()
        if self._rung:
            self._rung = False
            self._look()
            await self._clock.sleep(SPACING_S)  # what rings meanwhile is one look
        return LOOK_S

    def _open(self) -> None:
        """Raises SlurmError where the FIFO cannot be made."""
        try:
            if self._fd >= 0 and _same(self._fd, self.path):
                return
            self._close()
            with suppress(FileExistsError):
                os.mkfifo(self.path, 0o600)
            fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise SlurmError(f"{self.path} cannot be opened: {error.strerror}") from error
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise SlurmError(f"{self.path} is not a FIFO: rm {self.path}")
        self._fd = fd
        asyncio.get_running_loop().add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, CHUNK_B)
        except BlockingIOError:
            return
        lines = data.decode("ascii", "replace").splitlines()
        told = [line for line in lines if line]
        if len(told) < len(lines):
            self._rung = True
            self.wake()
        if told:
            self._heard(told)

    def _close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def aclose(self) -> None:
        """Nobody listens any more: programs that ring end at once."""
        self._close()


def _same(fd: int, path: Path) -> bool:
    try:
        there, ours = path.lstat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
