"""The public half of root's key for the nodes, from its file."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from pathlib import Path

from meshd.api.schema import CheckRow
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.reporting import Check, Reporter, fail, ok, warn

_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{16,200}={0,2}")
MAX_B = 4096


class HeadKey(Reporter):
    """Reads it again when the file changes.

    Args:
        path: the private half, which only root may read; the public one is beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._public = path.with_name(path.name + ".pub")
        self._read: tuple[int, int] | None = None
        self._key = ""

    def public(self) -> str:
        """Type and key; "" while there is none. A file that is gone for a moment changes nothing on the nodes."""
        try:
            found = self._public.stat()
        except OSError:
            return self._key
        if self._read != (found.st_mtime_ns, found.st_size):
            self._read = (found.st_mtime_ns, found.st_size)
            self._key = self._key_in_file() or self._key
        return self._key

    def _key_in_file(self) -> str:
        try:
            with self._public.open("rb") as file:
                words = file.read(MAX_B).decode("ascii", "replace").split()
        except OSError:
            return ""
        key = " ".join(words[:2])
        return key if _KEY.fullmatch(key) else ""

    def checks(self) -> Iterable[Check]:
        """Whether there is a key, and nobody but root can read its private half."""
        yield Check(CheckName.SSH_KEY, self.check)

    async def check(self) -> CheckRow:
        """For `meshctl doctor`."""
        name = CheckName.SSH_KEY
        if not self._key_in_file():
            text = f"there is no key in {self._public}: root cannot use `meshctl ssh NODE`"
            return warn(name, ProblemCode.NO_SSH_KEY, text, "`meshctl init` as root makes it")
        try:
            found = self._path.stat()
        except PermissionError:
            return ok(name, "its private half is root's alone")
        except OSError as error:
            cure = f"rm {self._public}, then `meshctl init`: it makes a new key"
            return fail(name, ProblemCode.NO_SSH_KEY, f"{self._path}: {error.strerror}", cure)
        if found.st_uid != 0 or stat.S_IMODE(found.st_mode) & 0o077:
            text = f"others than root can read {self._path}, and so come in to all nodes as root"
            cure = f"rm {self._path} {self._public}, then `meshctl init`: it makes a new key"
            return fail(name, ProblemCode.SSH_KEY_EXPOSED, text, cure)
        return ok(name, "its private half is root's alone")
