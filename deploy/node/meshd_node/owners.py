"""Gives files from one number to another, in directories whose user may exchange any part of them meanwhile.

What is looked at is what is given: it is open. No link is followed, and no other file system is entered.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Owner = tuple[int, int]
"""Of a file: uid and gid."""

PATH_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
DIRECTORY_ONLY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_exactly(path: Path) -> int:
    """Open what is at an absolute path, to look at it and not to read it. No part of the path may be a link.

    Raises:
        OSError: it is not there, or a directory of the path is a link now.
    """
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path.parts[1:-1]:
        try:
            inner = os.open(part, PATH_ONLY | os.O_DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    try:
        return os.open(path.name, PATH_ONLY, dir_fd=fd)
    finally:
        os.close(fd)


def give(fd: int, owner: Owner) -> None:
    """Give exactly what is open, were it a link. Raises OSError."""
    os.chown(f"/proc/self/fd/{fd}", *owner)


def give_all(directory: int, new_of: Callable[[os.stat_result], Owner]) -> None:
    """Give all that is in an open directory, and the directory, to whom `new_of` says. Raises OSError."""
    device = os.fstat(directory).st_dev
    for _, names, files, at in os.fwalk(".", dir_fd=directory, follow_symlinks=False):
        inside = []
        for name in (*names, *files, "."):
            with suppress(FileNotFoundError):
                if _give_one(name, at, device, new_of) and name in names:
                    inside.append(name)
        names[:] = inside


def _give_one(name: str, at: int, device: int, new_of: Callable[[os.stat_result], Owner]) -> bool:
    """Give one; False for a directory of another file system. An overlay shows files with devices of their own."""
    fd = os.open(name, PATH_ONLY, dir_fd=at)
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode) and found.st_dev != device:
            return False
        if (owner := new_of(found)) != (found.st_uid, found.st_gid):
            give(fd, owner)
        return True
    finally:
        os.close(fd)
