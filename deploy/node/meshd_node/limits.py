"""What a container may use of its host. `slurmd -C` shows the host's processors and memory, not the container's.

Sources: Linux, Documentation/admin-guide/cgroup-v2.rst (cpu.max, memory.max) and cgroup-v1 (cpu.cfs_quota_us,
memory.limit_in_bytes). The processors of the cpuset are those of the agent's own affinity.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .paths import Paths

NO_LIMIT_B = 1 << 60
"""cgroup v1 writes a number near 2**63 for "no limit"."""


def limited(
    shape: dict[str, int], paths: Paths, affinity: Callable[[], int] = lambda: len(os.sched_getaffinity(0))
) -> dict[str, int]:
    """The shape of the machine without what this container may not use.

    Fewer processors are shown as one socket of cores with one thread: which of the host's cores they are is not fixed.

    Args:
        shape: as `parse.slurmd_c` returns it.
        paths: where /proc and /sys are.
        affinity: how many processors this process may use.
    """
    found = dict(shape)
    count = min(shape["cpus"], cpus(paths, affinity))
    if 0 < count < shape["cpus"]:
        found.update(cpus=count, boards=1, sockets_per_board=1, cores_per_socket=count, threads_per_core=1)
    found["memory_mib"] = min([shape["memory_mib"], *_memory_mib(paths)])
    return found


def cpus(paths: Paths, affinity: Callable[[], int] = lambda: len(os.sched_getaffinity(0))) -> int:
    """How many processors this container may use, by its cpuset and its quotas."""
    return min([affinity(), *_cpus(paths)])


def _cpus(paths: Paths) -> Iterator[int]:
    for group in _groups(paths, "cpu"):
        words = _words(group / "cpu.max") or [*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            yield max(1, int(words[0]) // int(words[1]))


def _memory_mib(paths: Paths) -> Iterator[int]:
    for group in _groups(paths, "memory"):
        words = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
        if words and words[0].isdigit() and 0 < int(words[0]) < NO_LIMIT_B:
            yield max(1, int(words[0]) >> 20)


def _groups(paths: Paths, controller: str) -> Iterator[Path]:
    """This process's control group and those above it, as far as the container sees them; of both hierarchies."""
    for line in _text(paths.proc / "self/cgroup").splitlines():
        _number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            top = paths.cgroups
        elif controller in controllers.split(","):
            top = paths.cgroups / controller
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for count in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:count])


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
