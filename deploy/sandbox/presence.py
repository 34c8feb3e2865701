"""Folders that all sandboxes of a host share: they are there while one sandbox is, and gone with the last one."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
from collections.abc import Iterator
from pathlib import Path

from deploy.sandbox.cache import cache_root

STATE_ROOT = Path("/run/meshd-sandbox")
"""Where sandboxes keep their files while they exist."""

NETNS = Path("/run/netns")
"""Where `ip netns` keeps namespaces: the first `ip netns add` of a host mounts it."""

_FOLDERS = (STATE_ROOT, Path("/run/systemd"))
_TIMEOUT_S = 20.0


@contextlib.contextmanager
def shared_folders() -> Iterator[None]:
    """Keep the shared folders while the context lasts; the last user of them removes those that are empty.

    Whoever makes a sandbox or a named network namespace holds this meanwhile: two users may come and go at any time,
    in any number of processes, and none removes a folder under another one.
    """
    lock = cache_root() / "locks" / "shared-folders.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # waits for the moment only in which the last one removes them
        try:
            yield
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_empty()


def _remove_empty() -> None:
    """Whoever else uses them, without this lock, has something in them."""
    if NETNS.is_dir() and not any(NETNS.iterdir()):
        subprocess.run(["umount", NETNS], check=False, capture_output=True, timeout=_TIMEOUT_S)
        with contextlib.suppress(OSError):
            NETNS.rmdir()
    for folder in _FOLDERS:
        with contextlib.suppress(OSError):
            folder.rmdir()
