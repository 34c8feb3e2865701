"""Home directories on this machine: made for users whose home is not on a share, closed when the user is gone."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .account_merge import Move
from .account_value import User
from .errors import NodeError
from .owners import DIRECTORY_ONLY, Owner, give_all
from .paths import Paths
from .root_path import others_decide

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "fuse.sshfs", "fuse.juicefs", "9p")
"""Types of file systems whose files other machines use too."""


class NotTheirs(NodeError):
    """Somebody else decides what is in a user's home."""


class Homes:
    """The machine's home directories.

    Args:
        paths: of the machine.
        made: homes that were made here: path to {"inode", "uid", "open"}. It is changed.
        shares: directories of other machines.
    """

    def __init__(self, paths: Paths, made: dict[str, Any], shares: tuple[str, ...]) -> None:
        self._paths = paths
        self.made = made
        self._shares = shares
        self._network = _network_mounts(paths)

    def local(self, home: str) -> bool:
        """Whether the directory is this machine's own. Nothing of a share is made, changed or given away here."""
        return not any(_below(home, share) for share in (*self._shares, *self._network))

    def make(self, user: User) -> None:
        """Make the user's home from /etc/skel, 0700, or open it again. One that is there otherwise stays as it is.

        Raises:
            OSError: it cannot be made.
            NotTheirs: others than root may exchange it, or it is another user's already.
        """
        if not self.local(user.home) or _nowhere(user.home):
            return
        path, known = self._path(user.home), self.made.get(user.home)
        if place := others_decide(path):
            raise NotTheirs(f"others than root may exchange {place}")
        found = _seen(path)
        if found is not None and known is not None and known["inode"] == found.st_ino and not known["open"]:
            if known["uid"] == user.uid:
                os.chown(str(path), user.uid, user.gid, follow_symlinks=False)
                known["open"] = True
                return
            path.rename(path.with_name(f"{path.name}.{known['uid']}"))  # its files are another user's
            found = None
        if found is not None and found.st_uid not in (0, user.uid):
            raise NotTheirs(f"it belongs to the number {found.st_uid}")  # who could run programs as the user by it
        if found is None:
            self.made[user.home] = {"inode": self._make(path, user), "uid": user.uid, "open": True}

    def _make(self, path: Path, user: User) -> int:
        """Make it beside its place, so that a home is never there in part; returns its inode."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.meshd-new")
        if _seen(new) is not None:
            shutil.rmtree(str(new))
        new.mkdir(mode=0o700)
        if self._paths.skel.is_dir():
            shutil.copytree(str(self._paths.skel), str(new), symlinks=True, dirs_exist_ok=True)
        for directory, names, files in os.walk(str(new)):
            for name in (*names, *files):
                os.chown(str(Path(directory) / name), user.uid, user.gid, follow_symlinks=False)
        new.chmod(0o700)
        os.chown(str(new), user.uid, user.gid)
        inode = new.stat().st_ino
        new.rename(path)
        return inode

    def missing(self, users: Iterable[User]) -> set[str]:
        """The homes that should be there and are not. Looks at nothing on a share: its server may be away."""
        homes = (user.home for user in users if self.local(user.home) and not _nowhere(user.home))
        return {home for home in homes if _seen(self._path(home)) is None}

    def close(self, uid: int) -> None:
        """Give the homes that were made for a user who is gone to root, 0700. Their files stay."""
        for home, known in self.made.items():
            path = self._path(home)
            found = _seen(path)
            if not known["open"] or known["uid"] != uid or found is None or not self.local(home):
                continue
            if found.st_ino == known["inode"] and found.st_uid == uid and stat.S_ISDIR(found.st_mode):
                known["open"] = not _close(path, found)

    def move(self, move: Move) -> None:
        """Give an account's files in its home to its new number."""
        if move.home in ("", "/") or not self.local(move.home):
            return
        try:
            fd = os.open(str(self._path(move.home)), DIRECTORY_ONLY)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if error.errno == errno.ELOOP:
                return  # a link: not its home
            raise
        try:
            found = os.fstat(fd)
            if found.st_uid not in move.uid:
                return  # not its home: /, /usr/sbin and the like
            give_all(fd, lambda one: _moved(one, move))
        finally:
            os.close(fd)
        known = self.made.get(move.home)
        if known is not None and known["inode"] == found.st_ino:
            known["uid"] = move.uid[1]

    def _path(self, home: str) -> Path:
        return self._paths.root / home.lstrip("/")


def _close(path: Path, seen: os.stat_result) -> bool:
    """Give a directory to root, unless it was exchanged since it was seen."""
    fd = os.open(str(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        same = os.path.samestat(os.fstat(fd), seen)
        if same:
            os.fchown(fd, 0, 0)
            os.fchmod(fd, 0o700)
    finally:
        os.close(fd)
    return same


def _moved(found: os.stat_result, move: Move) -> Owner:
    uid = move.uid[1] if found.st_uid == move.uid[0] else found.st_uid
    gid = move.gid[1] if found.st_gid == move.gid[0] else found.st_gid
    return uid, gid


def _nowhere(home: str) -> bool:
    """Whether a home says that the account has none."""
    return any(_below(home, path) for path in ("/nonexistent", "/var/empty", "/dev", "/proc", "/sys", "/run"))


def _below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def _seen(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _network_mounts(paths: Paths) -> list[str]:
    """Where file systems of other machines are mounted now."""
    try:
        lines = (paths.proc / "self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.split()[:1]
        if len(words) > 4 and kind and kind[0] in NETWORK:
            found.append(words[4].replace("\\040", " "))
    return found
