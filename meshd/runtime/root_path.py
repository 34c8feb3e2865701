"""Whether root alone decides what a path leads to. Where others do, root makes, mounts, exports and reads nothing.

The node agent, which is installed by itself, has this file too, byte for byte. So it uses nothing but the standard
library, of Python 3.9.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

LINKS_MAX = 40
"""As in the kernel."""


def others_decide(path: Path) -> str:
    """The place where others than root may exchange a part of the path, links included; "" when there is none.

    What is at the path itself may belong to anybody. Parts that are missing may be made.

    Args:
        path: absolute.

    Raises:
        OSError: a part of it cannot be looked at.
    """
    at, rest, links = Path("/"), [part for part in str(path).split("/") if part], 0
    while rest:
        shared = _shared(at.lstat())
        if shared is None:
            return str(at)
        part = rest.pop(0)
        child = at.parent if part == ".." else at / part
        try:
            found = child.lstat()
        except FileNotFoundError:
            return ""
        if shared and not _roots(found):
            return str(child)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > LINKS_MAX:
                return str(child)
            to = os.readlink(str(child))  # noqa: PTH115  a path, whatever characters it has
            rest = [one for one in to.split("/") if one not in ("", ".")] + rest
            at = Path("/") if to.startswith("/") else at
        elif stat.S_ISDIR(found.st_mode):
            at = child
        else:
            return ""
    return ""


def _shared(directory: os.stat_result) -> bool | None:
    """Whether others may add names to a directory of root's, and nobody exchanges another's; None: they may do more."""
    if not _roots(directory):
        return None
    if not directory.st_mode & 0o022:
        return False
    return True if directory.st_mode & stat.S_ISVTX else None


def _roots(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid())
