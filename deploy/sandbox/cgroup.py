"""The control groups of machines: one per machine in the unified hierarchy, under one per sandbox."""

from __future__ import annotations

import contextlib
from pathlib import Path

from deploy.sandbox import proc


def hierarchy(mountinfo: Path = Path("/proc/self/mountinfo")) -> Path | None:
    """Where the unified hierarchy is mounted; None if it is nowhere."""
    for line in mountinfo.read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] == "cgroup2":
            return Path(before.split()[4])
    return None


class MachineGroups:
    """The groups of one sandbox's machines.

    Args:
        sandbox_id: names the parent group.
        fallback: an empty directory to mount the hierarchy at where the host has not.
    """

    def __init__(self, sandbox_id: str, fallback: Path) -> None:
        self._parent = f"meshd-sandbox-{sandbox_id}"
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
        """Remove the empty group of a machine that is gone."""
        if self._root:
            _remove_tree(self._root / self._parent / name)

    async def down(self) -> None:
        """Remove all groups of the sandbox, and the mount if it was ours."""
        if self._root:
            _remove_tree(self._root / self._parent)
        if self._root == self._fallback:
            await proc.run(["umount", "-l", self._fallback], timeout_s=10, check=False)

    def _control(self, name: str, file: str, value: str) -> None:
        if self._root:
            (self._root / self._parent / name / file).write_text(value)


def _remove_tree(group: Path) -> None:
    """Remove a group and those below it; one that still has processes stays."""
    if group.is_dir():
        for path in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()
