"""Copies of secrets on this machine: those that are of no use any more are erased, the others are root's alone."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .paths import Paths

STAGE1 = b"/etc/meshd-node"
"""Is in stage 1, in whatever form a cloud keeps it, and in no other file of cloud-init's."""

READ_MAX_B = 4 * 1024 * 1024


def spent_copies(paths: Paths) -> list[Path]:
    """Erase the copies of stage 1 that cloud-init has made; returns what was erased.

    It holds the join token, which is spent, and an auth key. cloud-init does not read them again: at each boot it makes
    them anew from its own cache, which root alone can read, and the agent erases them again. What is made for all to
    read, and should not hold the user data, is closed.
    """
    cloud, run = paths.root / "var/lib/cloud", paths.root / "run/cloud-init"
    erased = []
    one = cloud / "instances"
    # cloud-init's second form of it may be in base64
    ours = {path.parent for path in one.glob("*/user-data.txt") if _holds_stage1(path)}
    for path in _files(one.glob("*/*.txt*"), one.glob("*/scripts/*"), cloud.glob("scripts/*/*")):
        if _holds_stage1(path) or (path.parent in ours and path.name.startswith("user-data.txt")):
            path.unlink(missing_ok=True)
            erased.append(path)
    for path in _files(run.glob("*.json"), cloud.glob("instances/*/obj.pkl"), cloud.glob("seed/*/*")):
        if _holds_stage1(path) and path.stat().st_mode & 0o077:
            path.chmod(0o600)
    return erased


def left(paths: Paths) -> list[Path]:
    """Erase all secrets of the cluster on a machine that has left it; returns what was erased.

    A munged that still runs has the key in its memory alone.
    """
    doomed = [
        paths.munge_key, paths.munge_key_staged, paths.munge_key_previous, paths.auth_key, paths.spare_key,
        paths.auth_key_once,
    ]  # fmt: skip
    erased = [path for path in doomed if path.exists()]
    for path in erased:
        path.unlink(missing_ok=True)
    # one that was being written when its writer was killed
    for path in _files(paths.munge_etc.glob(".*"), paths.auth_key.parent.glob(".*.key.*")):
        path.unlink(missing_ok=True)
    return erased + spent_copies(paths)


def _files(*found: Iterable[Path]) -> list[Path]:
    return [path for some in found for path in some if path.is_file() and not path.is_symlink()]


def _holds_stage1(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return STAGE1 in file.read(READ_MAX_B)
    return False
