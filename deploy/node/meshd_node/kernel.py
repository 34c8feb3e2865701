"""What the kernel lets this machine do that Slurm's settings may ask for: control groups, and mounts in a job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .kind import CAP_SYS_NICE, has_capability, has_systemd, may_mount
from .limits import cpus
from .paths import Paths


class Kernel(NamedTuple):
    """Attributes:
    cgroups: the generation of control groups that slurmd can use here: "v1", "v2"; "" for none.
    mounts: root may mount file systems.
    affinity: root may bind a user's process to a processor (CAP_SYS_NICE), and to any that `slurmd -C` counts: neither
        a cpuset nor a quota holds processes back.
    """

    cgroups: str
    mounts: bool
    affinity: bool = True


def look(paths: Paths) -> Kernel:
    """Ask the kernel. A machine whose /proc cannot be read counts as one that allows nothing."""
    try:
        mountinfo = (paths.proc / "self/mountinfo").read_text("utf-8", "replace")
    except OSError:
        mountinfo = ""
    systemd = has_systemd(paths)
    return Kernel(
        usable_cgroups(mountinfo, paths.cgroups, systemd, writable),
        may_mount(paths.proc),
        has_capability(paths.proc, CAP_SYS_NICE) and (systemd or cpus(paths) >= (os.cpu_count() or 1)),
    )


def usable_cgroups(mountinfo: str, root: Path, systemd: bool, may_write: Callable[[str], bool]) -> str:
    """The generation of control groups that slurmd can use.

    slurmd looks at /sys/fs/cgroup alone. With v2 it makes its groups below a scope that it gets from systemd. With v1
    it makes them in each hierarchy; without `freezer` it can track no job. In an unprivileged container both are
    read-only.

    Args:
        mountinfo: of /proc/self/mountinfo.
        root: the directory.
        systemd: systemd runs.
        may_write: whether this process can make an entry in a directory.
    """
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2" and fields[4] == str(root) and systemd and may_write(fields[4]):
            return "v2"
        if kind[0] == "cgroup" and fields[4] == str(root / "freezer") and may_write(fields[4]):
            return "v1"
    return ""


def writable(directory: str) -> bool:
    """Whether an entry can be made in a directory: False on a read-only file system, for root too."""
    return os.access(directory, os.W_OK)
