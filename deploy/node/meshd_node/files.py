"""Files that are either the old one or the new one, never half of each."""

from __future__ import annotations

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
"""Longer than a login takes at most, and than a join with GPUs that do not answer."""

LOCK_STEP_S = 0.02


def write_atomic(path: Path, data: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Put `data` in place of `path`, whole and durable.

    Args:
        path: the file; missing directories are made.
        data: all of its new content.
        mode: permission bits.
        owner: (uid, gid) given to the file before it appears; None leaves the caller's.

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


def write_if_changed(path: Path, data: bytes) -> bool:
    """Write only when the content differs, for everybody to read; True when it was written."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return False
    write_atomic(path, data, 0o644)
    return True


@contextmanager
def locked(directory: Path, within_s: float = LOCK_S) -> Iterator[None]:
    """One process of ours at a time; the kernel drops the lock when its holder ends.

    Args:
        directory: what is locked; made when it is missing.
        within_s: the holder is waited for so long.

    Raises:
        OSError: the directory cannot be made, or (TimeoutError) the holder hangs.
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
    """Of a secret in a file, without the line's end; "" when there is no such file."""
    try:
        return hashlib.sha256(path.read_bytes().strip()).hexdigest()
    except OSError:
        return ""


def read_secret(path: Path) -> str:
    """The one line of a secret's file; "" when there is no such file or it is no text."""
    try:
        return path.read_bytes().decode("ascii").strip()
    except (OSError, ValueError):
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} when the file is missing or cannot be understood."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
