"""A file system below a directory, as in a chroot, with its own links, users and host name."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import stat
from collections import deque
from enum import Enum
from pathlib import Path, PurePosixPath

LINKS_MAX = 40
"""As in the kernel: a longer chain of links counts as a loop."""


class Kind(Enum):
    """What stands at a path."""

    MISSING = "missing"
    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"
    DANGLING = "dangling"
    LOOP = "loop"


class RootFs:
    """Paths below `root`. No link in it leads outside."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would follow /proc/PID/root to /
        self.is_host = os.path.samefile(self.root, "/")  # noqa: PTH121

    def locate(self, path: PurePosixPath, *, follow_last: bool = True) -> Path:
        """The path on this machine, with links followed inside the root.

        Raises:
            OSError: ELOOP when the links form a loop; or a directory cannot be read.
        """
        parts = deque(path.parts[1:])
        done: list[str] = []
        links = 0
        while parts:
            part = parts.popleft()
            if part == "..":
                del done[-1:]
                continue
            here = self.root.joinpath(*done, part)
            if (parts or follow_last) and here.is_symlink():
                links += 1
                if links > LINKS_MAX:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                target = PurePosixPath(here.readlink())
                if target.is_absolute():
                    done.clear()
                parts.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
                continue
            done.append(part)
        return self.root.joinpath(*done)

    def kind(self, path: PurePosixPath) -> Kind:
        """The kind of the entry at `path`.

        Raises:
            OSError: a directory cannot be read.
        """
        try:
            mode = self.locate(path).lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return Kind.DANGLING if self.is_link(path) else Kind.MISSING
        except OSError as error:
            if error.errno == errno.ELOOP:
                return Kind.LOOP
            raise
        if stat.S_ISREG(mode):
            return Kind.FILE
        return Kind.DIRECTORY if stat.S_ISDIR(mode) else Kind.OTHER

    def is_link(self, path: PurePosixPath) -> bool:
        """Whether the path is a symbolic link."""
        try:
            return self.locate(path, follow_last=False).is_symlink()
        except OSError:
            return False

    def link_target(self, path: PurePosixPath) -> PurePosixPath:
        """The absolute target of the link at `path`; links in its directory's path are not followed.

        Raises:
            OSError: it is no link.
        """
        target = PurePosixPath(self.locate(path, follow_last=False).readlink())
        return PurePosixPath(os.path.normpath(path.parent / target))

    def read_text(self, path: PurePosixPath) -> str:
        """A file's text; `surrogateescape` keeps bytes that are not UTF-8.

        Raises:
            OSError: it cannot be read.
        """
        return self.locate(path).read_bytes().decode("utf-8", "surrogateescape")

    def ids(self, user: str) -> tuple[int, int]:
        """The uid and gid of a user, given by name or number.

        Raises:
            KeyError: there is no such user.
            OSError: the root's /etc/passwd cannot be read.
        """
        if self.is_host:
            entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
            return entry.pw_uid, entry.pw_gid
        for line in self.read_text(PurePosixPath("/etc/passwd")).splitlines():
            fields = line.split(":")
            if len(fields) > 3 and user in (fields[0], fields[2] if user.isdigit() else ""):
                return int(fields[2]), int(fields[3])
        raise KeyError(user)

    def user_name(self, user: str) -> str:
        """The name of a user, given by name or number.

        Raises:
            KeyError: there is no such user.
            OSError: the root's /etc/passwd cannot be read.
        """
        if self.is_host:
            return (pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)).pw_name
        for line in self.read_text(PurePosixPath("/etc/passwd")).splitlines():
            fields = line.split(":")
            if len(fields) > 3 and user in (fields[0], fields[2] if user.isdigit() else ""):
                return fields[0]
        raise KeyError(user)

    def short_host_name(self) -> str:
        """The host name up to the first dot; "" where the root has none."""
        if self.is_host:
            return socket.gethostname().partition(".")[0]
        try:
            lines = self.read_text(PurePosixPath("/etc/hostname")).split()
        except OSError:
            return ""
        return lines[0].partition(".")[0] if lines else ""
