"""Starts and stops daemons: with systemd, or as child processes that the agent restarts when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from .console import say
from .errors import ToolFailed, ToolMissing
from .tools import find, run, search_path

RESTART_S = 2.0
STOP_S = 20.0


SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
"""Daemons do not get variables with these words: jobs must not see secrets from a container's environment."""


class Service(Protocol):
    """One daemon. All methods are idempotent."""

    def start(self) -> None:
        """Have it run."""

    def start_soon(self) -> None:
        """Start it without waiting, where possible."""

    def stop(self) -> None:
        """Stop it, and return when it has ended."""

    def restart(self) -> None:
        """Stop and start."""

    def alive(self) -> bool:
        """Whether it runs now."""


def start_unit(systemctl: str, *verb: str) -> None:
    """`systemctl start` or `restart` of a unit whose file may be new: systemd mostly finds it without a reload."""
    try:
        run([systemctl, *verb], 90.0)
    except ToolFailed as error:
        if "not found" not in str(error):
            raise
        run([systemctl, "daemon-reload"], 60.0)
        run([systemctl, *verb], 90.0)


class SystemdService:
    """A daemon that is a systemd unit."""

    def __init__(self, unit: str, systemctl: str) -> None:
        self._unit = unit
        self._systemctl = systemctl

    def start(self) -> None:
        """Have it run."""
        start_unit(self._systemctl, "start", self._unit)

    def start_soon(self) -> None:
        """Let systemd start it, without waiting."""
        start_unit(self._systemctl, "--no-block", "start", self._unit)

    def stop(self) -> None:
        """Stop it."""
        run([self._systemctl, "stop", self._unit], 90.0)

    def restart(self) -> None:
        """Stop and start."""
        start_unit(self._systemctl, "restart", self._unit)

    def alive(self) -> bool:
        """Whether systemd calls it active."""
        return run([self._systemctl, "is-active", "--quiet", self._unit], 15.0, check=False).returncode == 0


class ChildService:
    """A daemon in its own session. It outlives the agent, which finds it again by its pid file.

    Args:
        argv: builds the command line at each start.
        pid_file: where its pid is kept.
        proc: /proc.
        owner: (uid, gid) to run as; None: as the agent.
    """

    def __init__(
        self, argv: Callable[[], Sequence[str]], pid_file: Path, proc: Path, owner: tuple[int, int] | None = None
    ) -> None:
        self._argv = argv
        self._pid_file = pid_file
        self._proc = proc
        self._owner = owner
        self._wanted = False
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        """Start it, and restart it 2 s after it ends."""
        with self._lock:
            self._wanted = True
            if self._pid() == 0:
                self._spawn()
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name=f"watch {self._pid_file.stem}", daemon=True)
            self._watcher.start()

    def start_soon(self) -> None:
        """Do nothing: the child must belong to the process that keeps it running."""

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after 20 s."""
        with self._lock:
            self._wanted = False
            pid = self._pid()
            if pid == 0:
                return
            deadline = time.monotonic() + STOP_S
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            while self._pid() == pid and time.monotonic() < deadline:
                time.sleep(0.05)
            if self._pid() == pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def alive(self) -> bool:
        """Whether its process exists."""
        return self._pid() != 0

    def _pid(self) -> int:
        """Its pid; 0 when it does not run. Checks the process's name, since pids are reused."""
        if self._child is not None and self._child.poll() is not None:
            self._child = None
            return 0
        try:
            pid = int(self._pid_file.read_text())
            comm = (self._proc / str(pid) / "comm").read_text().strip()
        except (OSError, ValueError):
            return 0
        return pid if comm == self._pid_file.stem[:15] else 0

    def _spawn(self) -> None:
        argv = list(self._argv())
        program = find(argv[0])
        if not program:
            raise ToolMissing(argv[0])
        uid, gid = self._owner or (-1, -1)
        drop = os.geteuid() == 0 and uid > 0
        self._child = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            umask=0o022,
            env=_environment(),
            user=uid if drop else None,
            group=gid if drop else None,
            extra_groups=[] if drop else None,
        )
        self._pid_file.parent.mkdir(parents=True, exist_ok=True)
        self._pid_file.write_text(str(self._child.pid))

    def _watch(self) -> None:
        while True:
            time.sleep(RESTART_S)
            with self._lock:
                if self._wanted and self._pid() == 0:
                    say(f"{self._pid_file.stem} ended: starting it again")
                    try:
                        self._spawn()
                    except (OSError, ToolMissing) as error:
                        say(f"{self._pid_file.stem} cannot be started: {error}")


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not any(word in name.upper() for word in SECRET_WORDS)}
    return {**kept, "PATH": search_path()}
