"""Atomic files, a lock between the agent's processes, and reading of small files."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOCK_S = 200.0
"""Longer than the longest login, and than a join with GPUs that do not answer."""

LOCK_STEP_S = 0.02

LABEL = "security.selinux"


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` with `data`: atomically, or in place where it is a mount point, as /etc/hosts is in a container.

    Raises:
        OSError: it cannot be written.
    """
    try:
        write_atomic(path, data, mode)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        _overwrite(path, data)


def _overwrite(path: Path, data: bytes) -> None:
    """Write in place: all at once, and only then cut the rest off, so that a reader never finds an empty file."""
    with path.open("r+b", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        file.truncate(len(data))
        os.fsync(file.fileno())


def write_atomic(
    path: Path, data: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None, label: bytes = b""
) -> None:
    """Replace `path` with `data`, atomically and durably.

    Args:
        path: the file; missing directories are created.
        data: all of its new content.
        mode: permission bits.
        owner: (uid, gid), set before the file appears; None leaves the caller's.
        label: SELinux's; b"" leaves the directory's.

    Raises:
        OSError: the old content is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = str(path.parent / f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if owner is not None and os.geteuid() == 0:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            if label:
                os.setxattr(file.fileno(), LABEL, label)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    directory = os.open(str(path.parent), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def replace_keeping(path: Path, data: bytes, new_mode: int) -> None:
    """Replace `path` with `data` and keep its mode, its owner and SELinux's label; a new file is root's.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(os.path.realpath(str(path)))
    try:
        found = path.stat()
    except FileNotFoundError:
        write_atomic(path, data, new_mode)
        return
    label = _label(path)
    try:
        write_atomic(path, data, found.st_mode & 0o7777, (found.st_uid, found.st_gid), label)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        _overwrite(path, data)


def _label(path: Path) -> bytes:
    """SELinux's label of a file; b"" where there is none."""
    try:
        return os.getxattr(str(path), LABEL)
    except OSError:
        return b""


def write_if_changed(path: Path, data: bytes, mode: int = 0o644) -> bool:
    """Write only when the content differs. Returns whether it wrote."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return False
    write_file(path, data, mode)
    return True


@contextmanager
def locked(directory: Path, within_s: float = LOCK_S) -> Iterator[None]:
    """Lock out other processes of the agent. The kernel releases the lock when its holder ends.

    Args:
        directory: the directory to lock; created when missing.
        within_s: how long to wait for the lock.

    Raises:
        OSError: the directory cannot be created; TimeoutError when the holder does not release the lock.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fd = os.open(str(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + within_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    text = f"{directory} is locked by another process of meshd-node for over {within_s:g} s"
                    raise TimeoutError(text) from None
                time.sleep(LOCK_STEP_S)
        yield
    finally:
        os.close(fd)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a secret in a file, without the line break; "" when the file is missing."""
    try:
        return hashlib.sha256(path.read_bytes().strip()).hexdigest()
    except OSError:
        return ""


def read_secret(path: Path) -> str:
    """A secret from a file with one line; "" when the file is missing or is not ASCII text."""
    try:
        return path.read_bytes().decode("ascii").strip()
    except (OSError, ValueError):
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} when the file is missing or invalid."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
