"""Gives slurm and munge the uid and gid of the head, since every munge credential holds them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .errors import NotPossible
from .paths import Paths
from .tools import run

TIMEOUT_S = 30.0


class Account(NamedTuple):
    """A system user with the head's uid and gid."""

    name: str
    uid: int
    gid: int


def align(paths: Paths, account: Account, owned: Sequence[Path]) -> bool:
    """Create or change the user and its group to have these ids, and give it its directories.

    Must run while none of its processes runs. Doing it again changes nothing.

    Args:
        paths: where passwd and group are.
        account: name and numbers.
        owned: directories and files that belonged to the old number; missing ones are passed over.

    Returns:
        True when something had to be changed.

    Raises:
        NotPossible: another user or group has the number.
        ToolMissing, ToolFailed, ToolTimeout: from useradd, usermod, groupadd or groupmod.
    """
    user, group = _ids(paths.passwd, account.name), _ids(paths.group, account.name)
    user_gid = _primary_gid(paths.passwd, account.name)
    if user == account.uid and user_gid == account.gid:
        return False
    _free(paths.passwd, "user", account.name, account.uid)
    if group != account.gid:
        if _name_of(paths.group, account.gid) not in ("", account.name):
            _free(paths.group, "group", account.name, account.gid)
        verb = ["groupadd", "--system"] if group is None else ["groupmod"]
        run([*verb, "-g", str(account.gid), account.name], TIMEOUT_S)
    if user is None:
        flags = ["--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
        run(["useradd", *flags, "-u", str(account.uid), "-g", str(account.gid), account.name], TIMEOUT_S)
    else:
        run(["usermod", "-u", str(account.uid), "-g", str(account.gid), account.name], TIMEOUT_S)
    for path in owned:
        give(path, account)
    return True


def matches(paths: Paths, account: Account) -> bool:
    """Whether the user has these ids already."""
    return _ids(paths.passwd, account.name) == account.uid and _primary_gid(paths.passwd, account.name) == account.gid


def give(path: Path, account: Account) -> None:
    """Give a file, or a directory and its contents, to the user. Does not follow links."""
    if os.geteuid() != 0 or not path.exists():
        return
    os.chown(str(path), account.uid, account.gid, follow_symlinks=False)
    for directory, names, files in os.walk(str(path)):
        for name in (*names, *files):
            with suppress(FileNotFoundError):
                os.chown(str(Path(directory) / name), account.uid, account.gid, follow_symlinks=False)


def make_dir(path: Path, account: Account, mode: int) -> None:
    """Make a directory that belongs to the user, with exactly this mode."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(str(path), account.uid, account.gid)


def _free(table: Path, kind: str, name: str, number: int) -> None:
    holder = _name_of(table, number)
    if holder not in ("", name):
        raise NotPossible(
            f"{kind} {name} must have number {number} as on the head, but {holder} has it here",
            f"use an image where {number} is free, or change {name}'s number on the head",
            "accounts",
        )


def _rows(table: Path) -> list[list[str]]:
    try:
        text = table.read_text("utf-8", "replace")
    except OSError:
        return []
    return [line.split(":") for line in text.splitlines() if line.count(":") >= 3]


def _ids(table: Path, name: str) -> int | None:
    return next((int(row[2]) for row in _rows(table) if row[0] == name and row[2].isdigit()), None)


def _primary_gid(table: Path, name: str) -> int | None:
    return next((int(row[3]) for row in _rows(table) if row[0] == name and row[3].isdigit()), None)


def _name_of(table: Path, number: int) -> str:
    return next((row[0] for row in _rows(table) if row[2] == str(number)), "")
