"""Request files: meshd, which is not root, leaves one for a root unit of the head, and the unit takes it.

For programs that run as root. It uses only the standard library, so that they start quickly and load little code.
"""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

SMALL_MAX_B = 64 << 20


class RequestRefused(Exception):
    """The unit refuses the request; nothing has changed. The text says why."""


def set_aside(taken: Path) -> None:
    """Remove whatever was at the request's path. A directory stays: meshd does not remove its contents.

    Raises:
        OSError: it cannot be removed.
    """
    with suppress(IsADirectoryError):
        taken.unlink(missing_ok=True)


def take(request: Path, max_b: int) -> dict[str, Any]:
    """Read the request and remove it, also when it is invalid; otherwise the unit would serve it again and again.

    Args:
        request: a file of mode 0600 with a JSON object, of the user that its directory belongs to.
        max_b: the longest request.

    Raises:
        RequestRefused: it is no such file. It is removed all the same.
        OSError: it cannot be read or taken away.
    """
    # Under a name of its own first: what meshd lays from now on is another request, and stays.
    taken = request.with_name(f".{request.name}.taken.{time.time_ns()}")
    try:
        request.rename(taken)
    except FileNotFoundError:
        raise RequestRefused("the request is gone") from None
    try:
        fd = os.open(taken, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        set_aside(taken)
        raise RequestRefused(f"the request cannot be opened: {error.strerror}") from None
    set_aside(taken)
    found = os.fstat(fd)
    if stat.S_ISDIR(found.st_mode):
        os.close(fd)
        raise RequestRefused(f"the request is a directory: it is {taken.name} now")
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(found.st_mode) or found.st_size > max_b:
            raise RequestRefused("the request is no regular file, or too long")
        if found.st_uid != request.parent.stat().st_uid or found.st_mode & 0o077:
            raise RequestRefused("the request is not of meshd's user alone (mode 0600)")
        data = file.read(max_b)
    try:
        asked = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestRefused("the request is not JSON") from None
    if not isinstance(asked, dict):
        raise RequestRefused("the request is no JSON object")
    return asked


def read_small(path: Path) -> bytes:
    """The bytes of a file of root's; b"" when it is missing, or longer than SMALL_MAX_B."""
    with suppress(OSError), path.open("rb") as file:
        data = file.read(SMALL_MAX_B + 1)
        return data if len(data) <= SMALL_MAX_B else b""
    return b""


def write_whole(path: Path, data: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Write a file atomically. Nobody can read it before it has its mode.

    Args:
        path: the file.
        data: all of its new content.
        mode: permission bits.
        owner: (uid, gid); None: root's.

    Raises:
        OSError: the old content is still there.
    """
    name = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(fd, mode)
            if owner is not None:
                os.fchown(fd, *owner)
            os.fsync(fd)
        name.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            name.unlink()
        raise
