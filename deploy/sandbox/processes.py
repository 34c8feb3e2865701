"""Remembers processes on disk by pid and start time, so that a later run can end them and never somebody else's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for ever: the kernel uses a pid again, but not together with its start time.

    Attributes:
        pid: the number in this PID namespace.
        started_ticks: when it started, in clock ticks since the kernel booted.
    """

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this pid now; None if there is none."""
        fields = _stat(pid)
        return cls(pid, int(fields[19])) if fields else None

    def alive(self) -> bool:
        """True while this very process runs (a zombie does not)."""
        fields = _stat(self.pid)
        return bool(fields) and int(fields[19]) == self.started_ticks and fields[0] not in {"Z", "X"}

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, if the process still is this one."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class PidFolder:
    """A folder with one small file per process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def record(self, name: str, pid: int) -> None:
        """Note a process that was just started under a name."""
        self._folder.mkdir(parents=True, exist_ok=True)
        process = ProcessId.of(pid)
        if process:
            (self._folder / name).write_text(f"{process.pid} {process.started_ticks}\n")

    def forget(self, name: str) -> None:
        """Drop the note of that name; unknown names are ignored."""
        (self._folder / name).unlink(missing_ok=True)

    def get(self, name: str) -> ProcessId | None:
        """The process that was noted under a name, whether it runs or not; None if there is none."""
        try:
            words = (self._folder / name).read_text().split()
        except FileNotFoundError:
            return None
        return ProcessId(int(words[0]), int(words[1])) if len(words) == 2 else None

    def recorded(self) -> list[ProcessId]:
        """All noted processes, whether they run or not."""
        names = sorted(file.name for file in self._folder.iterdir()) if self._folder.is_dir() else []
        return [process for process in map(self.get, names) if process]


async def wait_gone(process: ProcessId, timeout_s: float) -> bool:
    """Wait until a process has ended; False when it has not after `timeout_s` seconds."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while process.alive():
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def children(pid: int) -> list[int]:
    """The pids whose parent is `pid`; none if it is gone.

    The kernel's own list may lack one while another one ends (proc(5)): who waits for a child looks again.
    """
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return sorted(int(word) for task in tasks for word in (task / "children").read_text().split())
    except FileNotFoundError:
        # It or one of its threads has just ended; or this kernel keeps no such lists (CONFIG_PROC_CHILDREN).
        return children_by_parent(pid)


def children_by_parent(pid: int) -> list[int]:
    """The same without the kernel's list: all processes of the host are looked at, a hundred times as slow."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields and int(fields[1]) == pid:
                found.append(int(entry.name))
    return sorted(found)


def program_of(pid: int) -> str:
    """The name of the program that a process runs, as the kernel keeps it (15 characters); "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def innermost_pid(pid: int) -> int | None:
    """What a process calls itself in the innermost PID namespace that it is in; None if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                numbers = line.split()[1:]
                return int(numbers[-1]) if len(numbers) > len(_own_namespaces()) else None
    return None


def _own_namespaces() -> list[str]:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return line.split()[1:]
    return ["0"]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The name stands in parentheses and may hold anything, more of those too.
    return text.rpartition(")")[2].split()
