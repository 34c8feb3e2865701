"""The machine bears its slot's name: what Slurm, MPI and torchrun take a machine for is what it calls itself.

slurmctld looks up the host of each srun unless it is a node's name, munged tells the address of its own host name, and
torchrun finds the master by comparing host names. A cloud's name (ip-10-0-3-7) is known to no other node.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from .console import say
from .files import write_if_changed
from .paths import Paths


class HostName:
    """Keeps the machine's name.

    Args:
        paths: where the files are.
        get: the kernel's word; replaced, with `set_`, where `paths` are not this machine's own.
        set_: tells the kernel.
    """

    def __init__(
        self,
        paths: Paths,
        get: Callable[[], str] = socket.gethostname,
        set_: Callable[[str], None] = socket.sethostname,
    ) -> None:
        self._file = paths.hostname
        self._get, self._set = get, set_
        if paths.root != Path("/"):
            self._get, self._set = self._read, lambda _: None  # the kernel's name is that of the machine of /
        self._told = ""

    def keep(self, name: str) -> bool:
        """Have the machine bear this name, now and after a reboot; True when it does.

        Some clouds' agents put their own name back whenever they renew the address, so it is asked for again and again.
        In a container it may not be possible: that is said once, and the machine works with its own name.
        """
        try:
            if self._get() != name:
                self._set(name)
            write_if_changed(self._file, f"{name}\n".encode())
        except OSError as error:
            text = f"the machine cannot be named {name}: {error.strerror or error}"
            if text != self._told:
                say(text)
            self._told = text
            return False
        return True

    def _read(self) -> str:
        try:
            return self._file.read_text("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""
