"""Atomic, durable replacement of files."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` with `data`, durably, or leave the old file untouched.

    It follows a symbolic link: the target is replaced and the link stays.

    Args:
        path: the file; its directory must exist and be writable.
        data: all of its new content.
        mode: permission bits of the new file.

    Raises:
        OSError: no space, no permission, or the target is not a regular file; the old content is still there.
    """
    path = path.resolve()
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(f"{path} is not a regular file: meshd does not replace it")
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
