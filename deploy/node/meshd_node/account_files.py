"""Reads and writes the account tables under the lock that useradd also takes, and remembers what was put there."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .account_merge import Ours, Renumbered, Renumbering
from .account_tables import NAMES, Tables
from .errors import NodeError
from .files import read_json, replace_keeping, write_atomic
from .paths import Paths

LOCK_S = 15.0
"""As lckpwdf(3) waits."""
LOCK_STEP_S = 0.05
NEW_MODE = {"shadow": 0o600, "gshadow": 0o600}


class TablesLocked(NodeError):
    """Another program changes the accounts of this machine."""


@contextmanager
def locked(paths: Paths) -> Iterator[None]:
    """Hold the lock of the account tables, as lckpwdf(3) takes it.

    Raises:
        TablesLocked: another program holds it for too long.
    """
    fd = os.open(str(paths.accounts_lock), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                if time.monotonic() > deadline:
                    raise TablesLocked(
                        f"{paths.accounts_lock} is held by another program for over {LOCK_S:g} s"
                    ) from None
                time.sleep(LOCK_STEP_S)
        yield
    finally:
        os.close(fd)


def read(paths: Paths) -> Tables:
    """The tables as they are. Only shadow, gshadow, subuid and subgid may be missing.

    Raises:
        OSError: one cannot be read.
        NodeError: passwd or group lacks root, so it is no table.
    """
    texts = {}
    for name in NAMES:
        try:
            texts[name] = _path(paths, name).read_bytes().decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            if name in ("passwd", "group"):
                raise
    for name in ("passwd", "group"):
        if not any(line.startswith("root:") for line in texts[name].split("\n")):
            raise NodeError(f"{_path(paths, name)} has no root: it is not changed")
    return Tables(**texts)


def write(paths: Paths, old: Tables, new: Tables) -> bool:
    """Replace the files that differ, each with its mode, its owner and its label. Returns whether any did.

    Raises:
        OSError: one cannot be written; those before it are.
    """
    changed = False
    for name in NAMES:
        text = new.text(name)
        if text is not None and text != old.text(name):
            replace_keeping(_path(paths, name), text.encode("utf-8", "surrogateescape"), NEW_MODE.get(name, 0o644))
            changed = True
    return changed


def signature(paths: Paths) -> tuple[tuple[int, int, int], ...]:
    """Changes when passwd or group is replaced or written."""
    found = []
    for path in (paths.passwd, paths.group):
        with suppress(OSError):
            seen = path.stat()
            found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
    return tuple(found)


def _path(paths: Paths, name: str) -> Path:
    found: Path = getattr(paths, name)
    return found


def load(paths: Paths) -> tuple[Ours, dict[str, Any]]:
    """What was put into the tables, and the homes that were made: path to {"inode", "uid", "open"}."""
    saved = read_json(paths.accounts_state)
    numbers = [{str(name): int(one) for name, one in dict(saved.get(key, {})).items()} for key in ("users", "groups")]
    before = [dict(saved.get(key, {})) for key in ("before_users", "before_groups")]
    ours = Ours(numbers[0], numbers[1], before[0], before[1], _renumbering(saved.get("renumbering", {})))
    return ours, dict(saved.get("homes", {}))


def _renumbering(saved: dict[str, Any]) -> Renumbering:
    accounts = {
        str(name): Renumbered(_pair(one["uid"]), _pair(one["gid"])) for name, one in saved.get("accounts", {}).items()
    }
    return Renumbering(accounts, {str(name): _pair(one) for name, one in saved.get("groups", {}).items()})


def _pair(numbers: list[int]) -> tuple[int, int]:
    before, after = numbers
    return int(before), int(after)


def save(paths: Paths, ours: Ours, homes: dict[str, Any]) -> None:
    """Remember it, before the tables are written and after.

    Raises:
        OSError: it cannot be written.
    """
    state = {
        "users": ours.users, "groups": ours.groups,
        "before_users": ours.before_users, "before_groups": ours.before_groups, "homes": homes,
        "renumbering": {
            "accounts": {name: one._asdict() for name, one in ours.renumbering.accounts.items()},
            "groups": ours.renumbering.groups,
        },
    }  # fmt: skip
    data = json.dumps(state).encode()
    with suppress(FileNotFoundError):
        if paths.accounts_state.read_bytes() == data:
            return
    write_atomic(paths.accounts_state, data, 0o600)
