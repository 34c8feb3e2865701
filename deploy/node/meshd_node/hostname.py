"""Sets the machine's host name to its slot's name, since Slurm, MPI and torchrun identify machines by host name.

slurmctld looks up the host of each srun unless it is a node's name, munged sends the address of its own host name, and
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
        paths: the machine's paths.
        tun: whether there is a TUN device. Without one libmeshnet shows programs the name in a file of its own.
        get: reads the kernel's host name. Replaced, with `set_`, where the root of `paths` is a directory.
        set_: sets the kernel's host name.
    """

    def __init__(
        self,
        paths: Paths,
        tun: bool = True,
        get: Callable[[], str] = socket.gethostname,
        set_: Callable[[str], None] = socket.sethostname,
    ) -> None:
        self._file = paths.hostname
        self._shown = None if tun else paths.meshnet_hostname
        self._get, self._set = get, set_
        if paths.root != Path("/"):
            self._get, self._set = self._read, lambda _: None  # the kernel's name is that of the machine of /
        self._last_said = ""

    def keep(self, name: str) -> bool:
        """Set this host name, now and for the next boot. Returns whether it worked.

        Call it again and again: some clouds' agents restore their own name when they renew the address. In a container
        it may fail: without a TUN device libmeshnet shows the name; with one the agent logs that once, and the machine
        keeps its own name.
        """
        try:
            if self._shown is not None:
                write_if_changed(self._shown, f"{name}\n".encode())
            if self._get() != name:
                self._set_or_show(name)
            write_if_changed(self._file, f"{name}\n".encode())
        except OSError as error:
            text = f"the machine cannot be named {name}: {error.strerror or error}"
            if text != self._last_said:
                say(text)
            self._last_said = text
            return False
        return True

    def _set_or_show(self, name: str) -> None:
        try:
            self._set(name)
        except PermissionError:
            if self._shown is None:
                raise

    def _read(self) -> str:
        try:
            return self._file.read_text("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""
