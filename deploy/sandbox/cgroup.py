"""The control groups of machines: one per machine in the unified hierarchy, under one per sandbox.

A pod has one in each hierarchy of the host, made by runc: there its limits are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from deploy.sandbox import proc

_TRIES = 100
_PAUSE_S = 0.05


def hierarchy(mountinfo: Path = Path("/proc/self/mountinfo")) -> Path | None:
    """Where the unified hierarchy is mounted; None if it is nowhere."""
    return next((point for kind, point in _mounts(mountinfo) if kind == "cgroup2"), None)


def hierarchies(mountinfo: Path = Path("/proc/self/mountinfo")) -> list[Path]:
    """Where any hierarchy is mounted, of either generation."""
    return [point for _, point in _mounts(mountinfo)]


def groups_of(sandbox_id: str) -> list[Path]:
    """A sandbox's control groups that are there, one in each hierarchy at most."""
    return [path for path in (root / parent_of(sandbox_id) for root in hierarchies()) if path.is_dir()]


def parent_of(sandbox_id: str) -> str:
    """The name of the group that holds all groups of a sandbox."""
    return f"meshd-sandbox-{sandbox_id}"


def _mounts(mountinfo: Path) -> list[tuple[str, Path]]:
    halves = [line.partition(" - ") for line in mountinfo.read_text().splitlines()]
    found = [(after.split(" ", 1)[0], Path(before.split()[4])) for before, _, after in halves]
    return [(kind, point) for kind, point in found if kind in {"cgroup", "cgroup2"}]


class MachineGroups:
    """The groups of one sandbox's machines.

    Args:
        sandbox_id: names the parent group.
        fallback: an empty directory to mount the hierarchy at where the host has not.
    """

    def __init__(self, sandbox_id: str, fallback: Path) -> None:
        self._parent = parent_of(sandbox_id)
        self._fallback = fallback
        self._root: Path | None = None

    async def up(self) -> None:
        """Find the hierarchy, or mount it."""
        self._root = hierarchy()
        if self._root is None:
            self._fallback.mkdir(parents=True, exist_ok=True)
            await proc.run(["mount", "-t", "cgroup2", "cgroup2", self._fallback], timeout_s=10)
            self._root = self._fallback

    def path_of(self, name: str) -> str:
        """A machine's group, from the root of the hierarchy."""
        return f"{self._parent}/{name}"

    def freeze(self, name: str, *, frozen: bool) -> None:
        """Stop all processes of a machine where they are, or let them go on."""
        self._control(name, "cgroup.freeze", "1" if frozen else "0")

    def kill(self, name: str) -> None:
        """Kill whatever is in a machine's group (kernels before 5.14 cannot; the caller has other means too)."""
        with contextlib.suppress(OSError):
            self._control(name, "cgroup.kill", "1")

    def remove(self, name: str) -> None:
        """Remove the empty groups of a machine that is gone."""
        for root in self._roots():
            _remove_tree(root / self._parent / name)

    async def down(self) -> None:
        """Remove all groups of the sandbox, and the mount if it was ours."""
        trees = [root / self._parent for root in self._roots()]
        for _ in range(_TRIES):
            for tree in trees:
                _remove_tree(tree)
            if not any(tree.is_dir() for tree in trees):
                break
            # What ran a machine outlives its last process by the moment that it takes to clean up.
            await asyncio.sleep(_PAUSE_S)
        if self._root and self._root == self._fallback:
            await proc.run(["umount", "-l", self._fallback], timeout_s=10, check=False)

    def _roots(self) -> list[Path]:
        return list(dict.fromkeys([*([self._root] if self._root else []), *hierarchies()]))

    def _control(self, name: str, file: str, value: str) -> None:
        if self._root:
            (self._root / self._parent / name / file).write_text(value)


def _remove_tree(group: Path) -> None:
    """Remove a group and those below it; one that still has processes stays."""
    if group.is_dir():
        for path, _, _ in os.walk(group, topdown=False):  # passes over groups that go meanwhile
            with contextlib.suppress(OSError):
                Path(path).rmdir()
