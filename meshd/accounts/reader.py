"""Reads the head's accounts: the files in /etc, and, by `getent`, what directory services add.

`getent` is a program of its own: one whose directory service does not answer holds up nobody, and is ended.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.errors import CommandError, CommandNotFound, CommandTimeout, MeshdError
from meshd.plan.account_changes import Seen
from meshd.plan.accounts import NAME, SYSTEM_BELOW, Accounts, Raw, Rule, choose
from meshd.runtime.run import Runner, run

ETC = Path("/etc")
TIMEOUT_S = 20.0
NAMES_AT_ONCE = 1000
NOT_FOUND = 2
"""getent's exit code when one of the keys is not there; it prints the others."""
FILES = ("passwd", "group", "nsswitch.conf", "subuid", "subgid")
FILE_MAX_B = 16 * 1024 * 1024

Signature = tuple[tuple[int, int, int], ...]


class AccountsUnreadable(MeshdError):
    """The accounts could not be read whole. Nothing follows from what was read."""


@dataclass(frozen=True, slots=True)
class Read:
    """What was read, and all there is to know about what was not."""

    accounts: Accounts
    seen: Seen


class AccountsReader:
    """Reads them.

    Args:
        runner: runs getent.
        etc: where the files are.
    """

    def __init__(self, runner: Runner = run, etc: Path = ETC) -> None:
        self._run = runner
        self._etc = etc

    def signature(self) -> Signature:
        """Changes when one of the files changes. Takes microseconds."""
        found = []
        for name in FILES:
            try:
                seen = (self._etc / name).stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
        return tuple(found)

    async def read(self, rule: Rule) -> Read:
        """All users of the cluster.

        Raises:
            AccountsUnreadable: a file is cut off, a directory service does not answer, or the group is not there.
        """
        local, subuid, subgid = await asyncio.to_thread(self._files)
        passwd, group = await self._getent("passwd"), await self._getent("group")
        missing_names = _names(local) - _names(passwd)
        if "root" not in missing_names and missing_names:
            raise AccountsUnreadable(f"{self._etc / 'passwd'} changed while it was read")
        if not rule.group:
            raw = Raw(passwd, group, local=_names(local), subuid=subuid, subgid=subgid)
            return Read(choose(raw, rule), Seen(_names(passwd)))
        (line,) = (await self._getent("group", rule.group))[:1]
        fields = line.split(":")
        if len(fields) != 4 or not fields[2].isdigit():
            raise AccountsUnreadable(f"the group {rule.group} cannot be read: {line[:80]}")
        members = frozenset(name for name in fields[3].split(",") if NAME.match(name))
        passwd += await self._keys("passwd", sorted(members - _names(passwd)))
        member_of = await self._member_of(_names(passwd) & members)
        group.append(line)
        known = {line.split(":")[2] for line in group if line.count(":") == 3}
        missing = {str(gid) for gids in member_of.values() for gid in gids if gid >= SYSTEM_BELOW} - known
        group += await self._keys("group", sorted(missing))
        raw = Raw(passwd, group, members, member_of, _names(local), subuid, subgid)
        return Read(choose(raw, rule), Seen(_names(passwd), members, int(fields[2])))

    def _files(self) -> tuple[list[str], list[str], list[str]]:
        """The lines of passwd, subuid and subgid; group is checked, and read by getent."""
        self._table("group", 4)
        return self._table("passwd", 7), self._lines("subuid"), self._lines("subgid")

    def _table(self, name: str, fields: int) -> list[str]:
        """The lines of passwd or group. Both are replaced whole by all tools; one that is not whole is not believed."""
        text = self._text(name)
        lines = [line for line in text.split("\n") if line and not line.startswith(("#", "+", "-"))]
        if not text.endswith("\n") or any(line.count(":") != fields - 1 for line in lines[-1:]):
            raise AccountsUnreadable(f"{self._etc / name} ends in the middle of a line")
        if not any(line.startswith("root:") for line in lines):
            raise AccountsUnreadable(f"{self._etc / name} has no root")
        return lines

    def _text(self, name: str) -> str:
        try:
            with (self._etc / name).open("rb") as file:
                return file.read(FILE_MAX_B).decode("utf-8", "replace")
        except OSError as error:
            raise AccountsUnreadable(f"{self._etc / name}: {error.strerror}") from error

    def _lines(self, name: str) -> list[str]:
        """The lines of a file that need not be there."""
        return self._text(name).splitlines() if (self._etc / name).exists() else []

    async def _keys(self, database: str, keys: Sequence[str]) -> list[str]:
        """The lines of these keys; those that are not found are left out."""
        found: list[str] = []
        for first in range(0, len(keys), NAMES_AT_ONCE):
            found += await self._getent(database, *keys[first : first + NAMES_AT_ONCE], some=True)
        return found

    async def _member_of(self, names: Iterable[str]) -> dict[str, list[int]]:
        lines = await self._keys("initgroups", sorted(names))
        rows = (line.split() for line in lines)
        return {row[0]: [int(word) for word in row[1:] if re.fullmatch(r"\d{1,10}", word)] for row in rows if row}

    async def _getent(self, database: str, *keys: str, some: bool = False) -> list[str]:
        """Lines of getent. With `some` a key may be missing."""
        try:
            result = await self._run(["getent", database, *keys], timeout_s=TIMEOUT_S, check=False)
        except (CommandError, CommandNotFound, CommandTimeout) as error:
            raise AccountsUnreadable(f"the accounts cannot be listed: {error}") from error
        lines = [line for line in result.stdout.split("\n") if line]
        what = " ".join((database, *keys[:1]))
        if result.returncode == NOT_FOUND and keys and not some:
            raise AccountsUnreadable(f"{what} is not there")
        if result.returncode not in (0, *((NOT_FOUND,) if some else ())) or not (lines or some):
            raise AccountsUnreadable(f"getent {what} ended with {result.returncode}")
        return lines


def _names(lines: Iterable[str]) -> frozenset[str]:
    return frozenset(line.partition(":")[0] for line in lines)
