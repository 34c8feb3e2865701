"""Whether a mounted share answers. Nothing here waits for its server.

A share is mounted `hard`: a process that touches it while the server is away waits in the kernel. So children ask.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

from .tools import find, search_path

LOST_S = 5.0
"""A share is lost when it has not answered for this long. The head waits besides before it keeps jobs off the node."""


class Probe:
    """Asks one share for its free space, over and over, in a child: it may hang for as long as the server is away."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._well_s = time.monotonic()
        self.words = ""
        """What is wrong, for people."""

    def ask(self) -> str:
        """Read the last answer, and ask again. Returns what is wrong; "" while nothing is."""
        with self._lock:
            if self._child is not None and self._child.poll() is not None:
                self._read(self._child)
                self._child = None
            if self._child is None:
                self._child = self._start()
            elif time.monotonic() - self._well_s > LOST_S:
                self.words = "does not answer"
            return self.words

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [find("stat") or "/usr/bin/stat", "-f", "-c", "%T", str(self._path)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "LC_ALL": "C.UTF-8", "PATH": search_path()},
        )  # fmt: skip

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        said = ""
        if child.stderr:
            os.set_blocking(child.stderr.fileno(), False)
            said = (child.stderr.read(1000) or b"").decode("utf-8", "replace").strip()
            child.stderr.close()
        if child.returncode == 0:
            self.words, self._well_s = "", time.monotonic()
        else:
            self.words = f"cannot be used: {said.rpartition(': ')[2] or 'no message'}"

    def end(self) -> None:
        """Stop watching."""
        with self._lock:
            if self._child is not None:
                self._child.kill()
                _ended.append(self._child)
                self._child = None


_probes: dict[Path, Probe] = {}
"""By directory."""
_ended: list[subprocess.Popen[bytes]] = []
"""Killed children. One that waits for a server ends when the kernel lets it."""


def ask(point: Path) -> str:
    """What is wrong with the share at a directory, from the last answer; "" while nothing is. Asks again."""
    return _probes.setdefault(point, Probe(point)).ask()


def last_words(point: Path) -> str:
    """What `ask` said last; "" where it was not called."""
    probe = _probes.get(point)
    return probe.words if probe is not None else ""


def stop(point: Path) -> None:
    """Ask no longer, and forget what was said."""
    probe = _probes.pop(point, None)
    if probe is not None:
        probe.end()
    for child in list(_ended):
        if child.poll() is not None:
            _ended.remove(child)
            if child.stderr:
                child.stderr.close()
