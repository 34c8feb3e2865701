"""Takes back what `before` has kept: a layer at a time, from the newest record to the oldest.

What is as meshd left it becomes what it was. A text that somebody has changed since loses only meshd's lines. What else
somebody has changed stays, and is named. Each record is marked when it is taken back, so that an undo that was cut off
goes on where it was.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from . import lines
from .before import Before
from .console import say
from .owners import DIRECTORY_ONLY, Owner, give, give_all, open_exactly
from .parse import plain
from .paths import Paths
from .record import Log, Record
from .root_path import others_decide
from .snapshot import ABSENT, DIRECTORY, FILE, LINK, Snapshot, put, take, text_of

_MOUNTED = "something is mounted there: it stays"
_TYPES = {FILE: stat.S_IFREG, DIRECTORY: stat.S_IFDIR, LINK: stat.S_IFLNK}
FIRST_USER = 1000
"""Numbers below are the system's."""
TEXT_MAX_B = 4 * 1024 * 1024

WHOLE = ("etc/munge", "var/lib/munge", "var/log/munge", "var/log/slurm", "var/spool/slurmd", "var/lib/slurm",
         "usr/lib/meshd", "var/log/meshd-node-setup.log")  # fmt: skip
"""Directories that meshd makes and daemons fill: where meshd made them, they go with all that is in them."""


def judge(before: Before, layer: str) -> None:
    """Note which paths are as meshd left them: before packages are removed, whose scripts change some of them."""
    newest = {record.path: record for record in before.logs[layer].records if not record.undone}
    for record in newest.values():
        if not record.ours and record.after is not None and record.after.same(take(Path(record.path))):
            before.logs[layer].mark(record, "ours")


def take_back(before: Before, layer: str, paths: Paths, skip: Callable[[str], bool] = lambda _: False) -> list[str]:
    """Take all changes of a layer back; those that could not be, a line each.

    Args:
        before: what was kept.
        layer: HOST or NODE.
        paths: the machine's paths.
        skip: whether a path is left as it is, for a later step.
    """
    log, left = before.logs[layer], []
    for record in reversed(log.records):
        if record.undone or skip(record.path):
            continue
        try:
            why = _one(before, log, record, paths)
        except OSError as error:
            why = str(error.strerror or error)
        if why:
            left.append(f"{record.path}: {why}")
            say(f"{record.path} is not as before: {why}")
        log.mark(record, "undone")
    for path, record in _homes(log).items():
        if not skip(path) and (why := _give_home_back(record)):
            left.append(f"{path}: {why}")
    _host_name(log.facts.get("hostname", []), paths)
    return left


def _one(before: Before, log: Log, record: Record, paths: Paths) -> str:
    """Take one record back; why not, or ""."""
    path, was = Path(record.path), record.before
    if record.after is not None and _only_owner(was, record.after):
        return _own(path, was, record.after)
    if place := others_decide(path.parent):
        return f"others than root may exchange {place}"
    now = take(path)
    if now.same(was):
        if was.kind == FILE and was.sha256 and now.mtime_ns != was.mtime_ns:
            os.utime(str(path), ns=(was.mtime_ns, was.mtime_ns))
        return ""
    if was.kind == ABSENT and now.kind == DIRECTORY:
        return _remove_directory(path, record, paths)
    if now.kind == DIRECTORY and was.kind != DIRECTORY:
        return "it is a directory now, which stays"
    if record.ours or record.after is None or record.after.same(now):
        put(path, was, before.store)
        return ""
    merged = _merged(before, record, path, now)
    if merged is None:
        return "somebody has changed it since: it stays"
    log.restate(record, merged, now)  # so that it is not merged again after an interruption
    put(path, merged, before.store)
    return ""


def _only_owner(was: Snapshot, after: Snapshot) -> bool:
    """Whether a change gave something to another owner and did nothing else."""
    return was.kind != ABSENT and was != after and replace(after, uid=was.uid, gid=was.gid) == was


def _own(path: Path, was: Snapshot, after: Snapshot) -> str:
    """Give what is at a path its owner back, in a user's directory too; why not, or "".

    A user may exchange any part of the path meanwhile. So this follows no link, and what it looks at is what it gives:
    it has it open. It gives nothing but what belongs to whom meshd gave it. Set-id bits do not come back, since the
    user may have changed the program.
    """
    try:
        fd = open_exactly(path)
    except FileNotFoundError:
        return "somebody has removed it since"
    except OSError as error:
        return f"a part of its path is not what it was: {error.strerror}"
    try:
        now = os.fstat(fd)
        if stat.S_IFMT(now.st_mode) != _TYPES.get(was.kind, stat.S_IFMT(now.st_mode)):
            return "it is something else now: it stays"
        if (now.st_uid, now.st_gid) == (was.uid, was.gid):
            return ""
        if (now.st_uid, now.st_gid) != (after.uid, after.gid):
            return "somebody has given it to another owner since: it stays"
        give(fd, (was.uid, was.gid))
    finally:
        os.close(fd)
    return ""


def _homes(log: Log) -> dict[str, Record]:
    """By path, the uppermost directories that were given from one account's number to another."""
    given = {
        record.path: record
        for record in log.records
        if record.after is not None and record.before.kind == DIRECTORY and _only_owner(record.before, record.after)
        if min(record.before.uid, record.after.uid) >= FIRST_USER and record.before.uid != record.after.uid
    }
    return {path: one for path, one in given.items() if not any(str(above) in given for above in Path(path).parents)}


def _give_home_back(record: Record) -> str:
    """Give an account its own number back on all that is in its home; why not, or "".

    It made files while it had the other number, and a file that was given may have another name now.
    """
    was, after = record.before, record.after
    assert after is not None

    def new_of(found: os.stat_result) -> Owner:
        if found.st_uid != after.uid:
            return found.st_uid, found.st_gid
        return was.uid, was.gid if found.st_gid == after.gid else found.st_gid

    try:
        fd = open_exactly(Path(record.path))
        try:
            if os.fstat(fd).st_uid != was.uid:
                return ""  # it is named already
            inside = os.open(".", DIRECTORY_ONLY, dir_fd=fd)
        finally:
            os.close(fd)
    except OSError:
        return ""
    try:
        give_all(inside, new_of)
    except OSError as error:
        return f"not all that is in it has its owner back: {error.strerror}"
    finally:
        os.close(inside)
    return ""


def _merged(before: Before, record: Record, path: Path, now: Snapshot) -> Snapshot | None:
    """What a text becomes that somebody else has changed too; None where that is not known."""
    was, after = record.before, record.after
    if after is None or not was.kind == after.kind == now.kind == FILE:
        return None
    old = before.store.text(was.sha256, TEXT_MAX_B)
    new = before.store.text(after.sha256, TEXT_MAX_B)
    text = text_of(path, TEXT_MAX_B)
    if old is None or new is None or text is None:
        return None
    merged = lines.take_back(old, new, text).encode("utf-8", "surrogateescape")
    rights = now if (now.mode, now.uid, now.gid) != (after.mode, after.uid, after.gid) else was
    return replace(rights, sha256=before.store.add(merged), mtime_ns=0)


def _remove_directory(path: Path, record: Record, paths: Paths) -> str:
    inside = os.path.relpath(str(path), str(paths.root))
    if (record.after is not None and record.after.whole) or inside in WHOLE:
        return remove_tree(path)
    try:
        path.rmdir()
    except OSError:
        return "others have put files into it: it stays"
    return ""


def remove_tree(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """Remove what is at a path with all that is in it, but nothing that is mounted there; why not, or ""."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    if not stat.S_ISDIR(found.st_mode):
        path.unlink()
        return ""
    at = os.open(str(path.parent), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _remove(path, at, _mounts(mountinfo))
    finally:
        os.close(at)


def _remove(path: Path, at: int, mounts: set[str]) -> str:
    """Remove a directory by its name in an open one. Never touches what is mounted in it: its server may be away."""
    if str(path) in mounts:
        return _MOUNTED
    fd = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    left = ""
    try:
        with os.scandir(fd) as entries:
            inside = [(entry.name, str(path / entry.name) in mounts) for entry in entries]
        for name, is_mount in inside:
            if is_mount:
                left = _MOUNTED
            elif stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                left = _remove(path / name, fd, mounts) or left
            else:
                os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)
    if not left:
        os.rmdir(path.name, dir_fd=at)
    return left


def _mounts(mountinfo: Path) -> set[str]:
    """Where something is mounted, by the kernel."""
    fields = (line.split(" ") for line in mountinfo.read_text("utf-8", "surrogateescape").splitlines())
    return {plain(field[4]) for field in fields if len(field) > 4}


def _host_name(names: list[str], paths: Paths) -> None:
    """Give the kernel the name again that it had at first."""
    if names and str(paths.root) == "/":
        with suppress(OSError):
            socket.sethostname(names[0])
