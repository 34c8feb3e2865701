"""Starts and stops daemons: with systemd, or with s6 in a container. Both keep them running."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from .errors import NodeError, ToolFailed
from .tools import run

START_S = 10.0
STOP_S = 20.0
S6_MISSES = 100
"""s6-svc's exit code where no s6-supervise watches the directory."""


class Service(Protocol):
    """One daemon. All methods are idempotent."""

    def start(self) -> None:
        """Have it run."""

    def start_soon(self) -> None:
        """Start it without waiting."""

    def stop(self) -> None:
        """Stop it, and return when it has ended."""

    def restart(self) -> None:
        """Stop and start."""

    def reload(self) -> None:
        """Send it SIGHUP. Raises ToolFailed where it does not run."""

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

    def reload(self) -> None:
        """Send it SIGHUP, as its unit says."""
        run([self._systemctl, "reload", self._unit], 90.0)

    def alive(self) -> bool:
        """Whether systemd calls it active."""
        return run([self._systemctl, "is-active", "--quiet", self._unit], 15.0, check=False).returncode == 0


class S6Service:
    """A daemon that s6 supervises (deploy/container/service).

    Args:
        directory: its service directory, below the scan directory of s6-svscan.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Whether an s6-supervise that was killed and restarted starts the service.
        self._down = directory / "down"

    def start(self) -> None:
        """Have it run: return when its process exists."""
        self._down.unlink(missing_ok=True)
        self._svc(START_S, "-wu", "-u")

    def start_soon(self) -> None:
        """Let s6 start it, without waiting."""
        self._down.unlink(missing_ok=True)
        self._svc(0.0, "-u")

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after 20 s."""
        if self._directory.is_dir():
            self._down.touch()
        try:
            self._svc(STOP_S, "-wd", "-d")
        except ToolFailed as error:
            if error.returncode == S6_MISSES:
                raise
            self._svc(START_S, "-wd", "-dk")

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def reload(self) -> None:
        """Send it SIGHUP."""
        self._svc(0.0, "-h")

    def alive(self) -> bool:
        """Whether its process exists."""
        result = run(["s6-svstat", "-o", "up", str(self._directory)], 15.0, check=False)
        return result.returncode == 0 and result.stdout.strip() == "true"

    def _svc(self, wait_s: float, *words: str) -> None:
        wait = ["-T", str(int(wait_s * 1000))] if wait_s else []
        run(["s6-svc", *wait, *words, str(self._directory)], wait_s + 15.0)


def supervised(directory: Path) -> bool:
    """Whether s6 supervises the service in this directory."""
    try:
        return run(["s6-svok", str(directory)], 15.0, check=False).returncode == 0
    except NodeError:  # there is no s6
        return False
