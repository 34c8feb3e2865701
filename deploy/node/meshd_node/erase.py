"""Erases copies of secrets that are no longer needed, and makes the others readable only by root."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .paths import Paths

STAGE1 = b"/etc/meshd-node"
"""A text in stage 1, in every form in which a cloud keeps it, and in no other file of cloud-init."""

READ_MAX_B = 4 * 1024 * 1024


def erase_stage1_copies(paths: Paths) -> list[Path]:
    """Erase cloud-init's copies of stage 1, and return their paths.

    Stage 1 holds the spent join token and an auth key. cloud-init does not read its copies again: at each boot it makes
    new ones from its own cache, which only root can read, and the agent erases them again. Other files with stage 1 in
    them that everybody can read get mode 0600.
    """
    cloud, run = paths.root / "var/lib/cloud", paths.root / "run/cloud-init"
    erased = []
    one = cloud / "instances"
    # cloud-init's second copy may be in base64
    ours = {path.parent for path in one.glob("*/user-data.txt") if _holds_stage1(path)}
    for path in _files(one.glob("*/*.txt*"), one.glob("*/scripts/*"), cloud.glob("scripts/*/*")):
        if _holds_stage1(path) or (path.parent in ours and path.name.startswith("user-data.txt")):
            path.unlink(missing_ok=True)
            erased.append(path)
    for path in _files(run.glob("*.json"), cloud.glob("instances/*/obj.pkl"), cloud.glob("seed/*/*")):
        if _holds_stage1(path) and path.stat().st_mode & 0o077:
            path.chmod(0o600)
    return erased


def erase_secrets(paths: Paths) -> list[Path]:
    """Erase all secrets of the cluster on a machine that leaves it, and return their paths.

    A running munged keeps the key in memory.
    """
    doomed = [
        paths.munge_key, paths.munge_key_staged, paths.munge_key_previous, paths.auth_key, paths.spare_key,
        paths.auth_key_once,
    ]  # fmt: skip
    erased = [path for path in doomed if path.exists()]
    for path in erased:
        path.unlink(missing_ok=True)
    # temporary files of a killed writer
    for path in _files(paths.munge_etc.glob(".*"), paths.auth_key.parent.glob(".*.key.*")):
        path.unlink(missing_ok=True)
    return erased + erase_stage1_copies(paths)


def _files(*found: Iterable[Path]) -> list[Path]:
    return [path for some in found for path in some if path.is_file() and not path.is_symlink()]


def _holds_stage1(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return STAGE1 in file.read(READ_MAX_B)
    return False
