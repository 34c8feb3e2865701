"""I/O: replaces a file's content and keeps its owner, mode, extended attributes, ACLs and hard links."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

TEMPORARY = ".meshd-init."
"""The prefix of the names of unfinished files."""

_GET_FLAGS = 0x80086601  # FS_IOC_GETFLAGS
_IMMUTABLE = 0x10  # FS_IMMUTABLE_FL
_APPEND = 0x20  # FS_APPEND_FL


def stage(path: Path, data: bytes, like: Path | None = None, *, mode: int = 0o644) -> Path:
    """Write a temporary file beside `path`, durably; `put` renames it to `path`.

    Args:
        path: the file to replace later.
        data: the new content.
        like: the file whose owner, mode and attributes it gets; None: the caller's owner, and `mode`.
        mode: of a file without `like`.

    Raises:
        OSError: no space, no permission, or an attribute cannot be kept. No temporary file is left.
    """
    fd, name = tempfile.mkstemp(prefix=f"{TEMPORARY}{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            if like is None:
                os.fchmod(file.fileno(), mode)
            else:
                copy_attributes(like, file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    return Path(name)


def put(staged: Path, path: Path) -> None:
    """Put a staged file in place. A file with several hard links is overwritten in place, so that they all stay.

    Raises:
        OSError: it cannot be written; the old content is still there, unless an overwrite in place failed half way.
    """
    if path.exists() and path.stat().st_nlink > 1:
        data = staged.read_bytes()
        with path.open("r+b") as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        staged.unlink()
        return
    staged.replace(path)
    sync_directory(path.parent)


def copy_attributes(source: Path, target_fd: int) -> None:
    """Copy the owner, mode and extended attributes (with ACLs) of a file to an open file.

    Raises:
        OSError: the file system does not allow one of them.
    """
    seen = source.stat()
    own = os.fstat(target_fd)
    if (own.st_uid, own.st_gid) != (seen.st_uid, seen.st_gid):
        os.fchown(target_fd, seen.st_uid, seen.st_gid)
    os.fchmod(target_fd, seen.st_mode & 0o7777)
    for name in os.listxattr(source):
        value = os.getxattr(source, name)
        with suppress(OSError):
            if os.getxattr(target_fd, name) == value:
                continue
        os.setxattr(target_fd, name, value)


def copy_beside(source: Path, data: bytes, name: str, directory: Path) -> Path:
    """Keep a copy of a file under the first free name of `name`, `name-1`, `name-2`.

    Raises:
        OSError: no space or no permission.
    """
    staged = stage(directory / name, data, source)
    try:
        for number in range(10_000):
            copy = directory / (f"{name}-{number}" if number else name)
            with suppress(FileExistsError):
                os.link(staged, copy)
                sync_directory(directory)
                return copy
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory / name))
    finally:
        staged.unlink()


def immutable(path: Path) -> bool:
    """Whether `chattr +i` or `+a` is set: not even root can replace the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        flags = struct.unpack("i", fcntl.ioctl(fd, _GET_FLAGS, b"\0" * 4))[0]
    except OSError:
        return False  # a file system without such flags
    finally:
        os.close(fd)
    return bool(flags & (_IMMUTABLE | _APPEND))


def remove_unfinished(directory: Path) -> None:
    """Remove the temporary files of a killed run. The caller holds the lock."""
    for left in directory.glob(f"{TEMPORARY}*"):
        left.unlink()


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
