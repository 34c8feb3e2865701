"""What is at a path: kind, rights and content. The contents are kept in a store, each under its digest."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .files import write_atomic

CHUNK_B = 1024 * 1024
SPARE_B = 64 * 1024 * 1024
"""What a copy must leave free on the disk."""

ABSENT, FILE, LINK, DIRECTORY, OTHER = "absent", "file", "link", "directory", "other"


class SpaceLacks(OSError):
    """There is no room to keep what a file held: the file must not be changed."""


@dataclass(frozen=True)
class Snapshot:
    """What was at a path.

    Attributes:
        kind: ABSENT, FILE, LINK, DIRECTORY or OTHER (a device, a socket, ...).
        mode, uid, gid: rights and owner.
        sha256: of a file's content; "" where nobody looked at it, since only its rights change.
        to: where a link leads.
        mtime_ns: of a file.
        xattrs: extended attributes (ACLs, SELinux's label), each in base64.
        whole: of a directory that came with all that is in it, and goes with it.
    """

    kind: str = ABSENT
    mode: int = 0
    uid: int = 0
    gid: int = 0
    sha256: str = ""
    to: str = ""
    mtime_ns: int = 0
    xattrs: dict[str, str] = field(default_factory=dict)
    whole: bool = False

    def same(self, other: Snapshot) -> bool:
        """Whether both say the same of a path. The time of the last change is nobody's concern."""
        if self.kind != other.kind:
            return False
        if self.kind == LINK:
            return self.to == other.to
        mine, theirs = (self.mode, self.uid, self.gid), (other.mode, other.uid, other.gid)
        content = not self.sha256 or not other.sha256 or self.sha256 == other.sha256
        return self.kind == ABSENT or (mine == theirs and content)

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {key: value for key, value in asdict(self).items() if value or key == "kind"}


def from_json(value: dict[str, Any]) -> Snapshot:
    """What `as_json` made."""
    return Snapshot(**value)


class Store:
    """The kept contents: files named by their SHA-256, which root alone reads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, path: Path) -> str:
        """Copy a file's content, unless it is kept already; its SHA-256.

        Raises:
            SpaceLacks: there is no room for it.
            OSError: it cannot be read or written.
        """
        with _opened(path) as source:
            return self._keep(source, path)

    def add(self, data: bytes) -> str:
        """Keep a content; its SHA-256."""
        digest = hashlib.sha256(data).hexdigest()
        self._directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        write_atomic(self._directory / digest, data, 0o600)
        return digest

    def _keep(self, source: Any, path: Path) -> str:
        digest = _digest(source.fileno())
        target = self._directory / digest
        if target.exists():
            return digest
        self._directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        size, disk = os.fstat(source.fileno()).st_size, os.statvfs(str(self._directory))
        if size + SPARE_B > disk.f_bavail * disk.f_frsize:
            raise SpaceLacks(errno.ENOSPC, f"no room to keep {path} ({size >> 20} MiB) before it is changed")
        os.lseek(source.fileno(), 0, os.SEEK_SET)
        half = target.with_name(f".{digest}.{os.getpid()}")
        checked = hashlib.sha256()
        fd = os.open(str(half), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as copy:
            while chunk := os.read(source.fileno(), CHUNK_B):
                copy.write(chunk)
                checked.update(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        digest = checked.hexdigest()  # of what was copied: the file may have changed in between
        half.replace(self._directory / digest)
        return digest

    def all(self) -> list[Path]:
        """The files of the store."""
        return list(self._directory.iterdir()) if self._directory.is_dir() else []

    def path(self, sha256: str) -> Path:
        """The file with this content."""
        return self._directory / sha256

    def text(self, sha256: str, most_b: int) -> str | None:
        """The content as text; None where it is longer, not text, or lost."""
        return text_of(self.path(sha256), most_b) if sha256 else None


def text_of(path: Path, most_b: int) -> str | None:
    """A file's text; None where it is longer than `most_b`, no text, or cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(most_b + 1)
    except OSError:
        return None
    return None if len(data) > most_b or b"\0" in data else data.decode("utf-8", "surrogateescape")


def take(path: Path, store: Store | None = None, content: bool = True) -> Snapshot:
    """Look at a path. Follows no link.

    Args:
        path: absolute.
        store: where a file's content is kept; None: only its digest is taken.
        content: False: only the rights are of interest.

    Raises:
        SpaceLacks, OSError: it cannot be looked at, or kept.
    """
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            return Snapshot(LINK, to=os.readlink(str(path)), uid=found.st_uid, gid=found.st_gid)  # noqa: PTH115
        kinds = {stat.S_IFDIR: DIRECTORY, stat.S_IFREG: FILE}
        kind = kinds.get(stat.S_IFMT(found.st_mode), OTHER)
        shot = Snapshot(kind, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, xattrs=_xattrs(path))
        if kind != FILE:
            return shot
        sha256 = ""
        if content:
            sha256 = store.keep(path) if store else _digest_of(path)
        return replace(shot, sha256=sha256, mtime_ns=found.st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        return Snapshot()


def put(path: Path, wanted: Snapshot, store: Store) -> None:
    """Make a path what the snapshot says. A directory that is in the way stays, and that is an error.

    Raises:
        OSError: it cannot be written, or the kept content is lost.
    """
    now = take(path, content=False)
    if wanted.kind == ABSENT:
        if now.kind == DIRECTORY:
            path.rmdir()
        elif now.kind != ABSENT:
            path.unlink()
    elif wanted.kind == LINK:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = _beside(path)
        new.symlink_to(wanted.to)
        os.chown(str(new), wanted.uid, wanted.gid, follow_symlinks=False)
        new.replace(path)
    elif wanted.kind == DIRECTORY:
        if now.kind != DIRECTORY:
            path.mkdir(parents=True)
        _rights(path, wanted)
    elif wanted.kind == FILE and wanted.sha256:
        put_content(path, wanted, store.path(wanted.sha256).open("rb"))
    elif now.kind == wanted.kind:
        _rights(path, wanted)
    _sync(path.parent)


def put_content(path: Path, wanted: Snapshot, source: Any) -> None:
    """Write a file with the content of an open one, and the rights of a snapshot; closes `source`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(path)
    fd = os.open(str(new), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with source, os.fdopen(fd, "wb") as file:
        while chunk := source.read(CHUNK_B):
            file.write(chunk)
        file.flush()
        _rights(new, wanted)
        os.fsync(file.fileno())
    if wanted.mtime_ns:
        os.utime(str(new), ns=(wanted.mtime_ns, wanted.mtime_ns))
    new.replace(path)


def _rights(path: Path, wanted: Snapshot) -> None:
    """Set rights and owner of what is there, and of nothing that a link leads to."""
    if wanted.kind == OTHER:  # to open a device may do something
        os.chown(str(path), wanted.uid, wanted.gid, follow_symlinks=False)
        path.chmod(wanted.mode)
        return
    fd = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.geteuid() == 0:
            os.fchown(fd, wanted.uid, wanted.gid)
        os.fchmod(fd, wanted.mode)
        for name, value in wanted.xattrs.items():
            with suppress(OSError):  # another file system may not have them
                os.setxattr(fd, name, base64.b64decode(value))
    finally:
        os.close(fd)


def _beside(path: Path) -> Path:
    """A free name in the same directory."""
    new = path.with_name(f".{path.name}.meshd-undo")
    with suppress(FileNotFoundError):
        new.unlink()
    return new


def _xattrs(path: Path) -> dict[str, str]:
    found = {}
    with suppress(OSError):
        for name in os.listxattr(str(path), follow_symlinks=False):
            value = os.getxattr(str(path), name, follow_symlinks=False)
            found[name] = base64.b64encode(value).decode("ascii")
    return found


def _opened(path: Path) -> Any:
    return os.fdopen(os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _digest_of(path: Path) -> str:
    with _opened(path) as file:
        return _digest(file.fileno())


def _digest(fd: int) -> str:
    digest = hashlib.sha256()
    while chunk := os.read(fd, CHUNK_B):
        digest.update(chunk)
    return digest.hexdigest()


def _sync(directory: Path) -> None:
    with suppress(OSError):
        fd = os.open(str(directory), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
