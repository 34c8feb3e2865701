"""The machine's processes and load, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from .bounded import Hangs, within
from .parse import step_job

TITLE_S = 1.0


@dataclass
class Running:
    """slurmd and the jobs on the machine.

    Attributes:
        jobs: ids of the jobs that have a slurmstepd; a step whose title tells no id counts under its pid.
    """

    slurmd: bool = False
    munged: bool = False
    jobs: set[str] = field(default_factory=set)


def look(proc: Path) -> Running:
    """Read /proc once. Skips a process that ends meanwhile."""
    running = Running()
    for entry in proc.iterdir() if proc.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            comm = (entry / "comm").read_text().strip()
            # Debian's is slurmd-wlm, which the kernel shows after it has executed itself again, at a reconfigure.
            if comm == "slurmd" or comm.startswith("slurmd-"):
                running.slurmd = True
            elif comm == "munged":
                running.munged = True
            elif comm.startswith("slurmstepd"):
                title = _title(entry)
                if "infinity" not in title:
                    running.jobs.add(step_job(title) or f"pid{entry.name}")
        except OSError:
            continue
    return running


def _title(entry: Path) -> str:
    """A process's command line; "" for a process that hangs in a page fault, which would block the reader."""
    try:
        data = within(f"{entry}/cmdline", (entry / "cmdline").read_bytes, TITLE_S)
    except Hangs:
        return ""
    return data.replace(b"\0", b" ").decode("utf-8", "replace")


def uptime_s(proc: Path) -> float:
    """Seconds since boot; 0 when not known."""
    try:
        return float((proc / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0


def container_boot(proc: Path, boot_id: str) -> tuple[str, float]:
    """(boot id, seconds since the start) of a container: its first process counts, not its host's kernel."""
    try:
        stat = (proc / "1/stat").read_text()
        ticks = int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return boot_id, uptime_s(proc)
    return f"{boot_id}-{ticks}", max(0.0, uptime_s(proc) - ticks / os.sysconf("SC_CLK_TCK"))


def load1(proc: Path) -> float:
    """The one-minute load average; 0 when not known."""
    try:
        return float((proc / "loadavg").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0


def uids(proc: Path) -> set[int]:
    """The uids that some process has, as its real, effective, saved or file system's one."""
    found: set[int] = set()
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdigit():
            try:
                for line in (entry / "status").read_text("utf-8", "replace").splitlines():
                    if line.startswith("Uid:"):
                        found.update(int(word) for word in line.split()[1:])
                        break
            except (OSError, ValueError):
                continue
    return found
