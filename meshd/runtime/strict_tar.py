"""Tar streams of regular files with short names and nothing else. What another wrote is read as hostile.

Only the plain headers of POSIX ustar are read, one block each: no links, no devices, and none of the extensions whose
own size a reader has to believe. GNU tar lists and unpacks such an archive.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from meshd.errors import MeshdError

MEMBERS_MAX = 4096
MEMBER_MAX_BYTES = 4 << 30
TOTAL_MAX_BYTES = 6 << 30
_NAME = re.compile(r"[A-Za-z0-9_@+][A-Za-z0-9_.@+-]*(/[A-Za-z0-9_@+][A-Za-z0-9_.@+-]*){0,7}")
_NAME_MAX_CHARS = 99
_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20


class TarRefused(MeshdError):
    """An archive is not what it should be; the text says where."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file of an archive.

    Attributes:
        name: relative, with plain characters: no part of it begins with a dot.
        size: bytes.
    """

    name: str
    size: int


def good_name(name: str) -> bool:
    """Whether a file of this name can be in an archive."""
    return len(name) <= _NAME_MAX_CHARS and _NAME.fullmatch(name) is not None


def write_member(out: BinaryIO, name: str, source: BinaryIO, size: int, mtime: int = 0) -> None:
    """Append a file. Raises TarRefused when it has become shorter, OSError when it cannot be read or written."""
    assert good_name(name), name
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, mtime
    out.write(info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict"))
    if _copy(source, out.write, size) < size:
        raise TarRefused(f"{name} has become shorter while it was read: try again")
    out.write(b"\0" * (-size % _BLOCK))


def write_end(out: BinaryIO) -> None:
    """Close an archive."""
    out.write(b"\0" * (2 * _BLOCK))


def unpack(source: BinaryIO, into: Path, wanted: Callable[[str], bool]) -> list[Member]:
    """Write all files of an archive below an empty directory, each with mode 0600.

    Args:
        source: the stream; read once, up to its end.
        into: the directory, which only its owner can write.
        wanted: whether an archive may have a file of this name.

    Raises:
        TarRefused: it is no such archive, it is cut, or it has more than it may.
        OSError: a file cannot be written.
    """
    members: list[Member] = []
    total = 0
    while (member := _next(source)) is not None:
        if not wanted(member.name):
            raise TarRefused(f"the archive has a file that does not belong there: {member.name}")
        total += member.size
        if len(members) >= MEMBERS_MAX or member.size > MEMBER_MAX_BYTES or total > TOTAL_MAX_BYTES:
            raise TarRefused(f"the archive has more than it may, at {member.name}")
        path = into / member.name
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except (FileExistsError, NotADirectoryError):
            raise TarRefused(f"the archive has two files at {member.name}") from None
        with os.fdopen(fd, "wb") as out:
            copied = _copy(source, out.write, member.size)
        if copied < member.size or len(source.read(-member.size % _BLOCK)) < -member.size % _BLOCK:
            raise TarRefused(f"the archive is cut off in {member.name}")
        members.append(member)
    return members


def _next(source: BinaryIO) -> Member | None:
    """The next file; None at the end of the archive."""
    block = source.read(_BLOCK)
    if block == b"\0" * _BLOCK:
        return None
    if len(block) < _BLOCK:
        raise TarRefused("the archive is cut off")
    try:
        info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
    except (tarfile.HeaderError, ValueError):
        raise TarRefused("this is no archive of `meshctl backup`, or it is damaged") from None
    if info.type != tarfile.REGTYPE or not good_name(info.name) or info.size < 0:
        raise TarRefused(f"the archive has something that is no plain file: {info.name[:_NAME_MAX_CHARS]!r}")
    return Member(info.name, info.size)


def _copy(source: BinaryIO, write: Callable[[bytes], object], size: int) -> int:
    left = size
    while left and (chunk := source.read(min(left, _CHUNK))):
        write(chunk)
        left -= len(chunk)
    return size - left
