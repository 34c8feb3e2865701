"""The tables passwd, group, shadow, gshadow, subuid and subgid as text: finding, replacing and adding lines. PURE.

All other lines stay as they are, byte for byte: comments, lines that nobody can read, and the `+` and `-` lines of NIS,
which must stay last.
"""

from __future__ import annotations

from typing import NamedTuple

NAMES = ("group", "gshadow", "subuid", "subgid", "shadow", "passwd")
"""In the order in which they are written: an account is in passwd last, when all else of it is there."""


class Tables(NamedTuple):
    """The text of each file; None for one that is not there."""

    passwd: str = ""
    group: str = ""
    shadow: str | None = None
    gshadow: str | None = None
    subuid: str | None = None
    subgid: str | None = None

    def text(self, name: str) -> str | None:
        """One file."""
        found: str | None = getattr(self, name)
        return found

    def with_text(self, name: str, text: str) -> Tables:
        """The tables with another text for one file."""
        return self._replace(**{name: text})


class Account(NamedTuple):
    """A readable line of passwd."""

    name: str
    uid: int
    gid: int
    home: str


class GroupRow(NamedTuple):
    """A readable line of group."""

    name: str
    gid: int
    members: tuple[str, ...]


class Table:
    """The lines of one file, while they are changed.

    Args:
        text: the file; None: it is not there.
        fields: how many a readable line has; the third is its number. 0: lines without a number.
    """

    def __init__(self, text: str | None, fields: int = 0) -> None:
        self.there = text is not None
        self._fields = fields
        lines = (text or "").split("\n")
        self._end = _end(lines)
        self._lines: list[str | None] = [*lines]
        self._more: list[str | None] = []
        self._at: dict[str, list[int]] = {}
        self._named: dict[int, dict[str, None]] = {}
        for at, line in enumerate(lines):
            self._index(at, line)

    @property
    def text(self) -> str | None:
        """The whole file; None when it was not there and nothing was added."""
        if not self.there:
            return None
        more = [line for line in self._more if line is not None]
        last = [""] if more and self._end == len(self._lines) else []  # the file's last line had no end
        lines = [*self._lines[: self._end], *more, *self._lines[self._end :], *last]
        return "\n".join(line for line in lines if line is not None)

    def of(self, name: str) -> list[str]:
        """The lines of an account or group."""
        found = (self._more[-at - 1] if at < 0 else self._lines[at] for at in self._at.get(name, ()))
        return [line for line in found if line is not None]

    def row(self, name: str) -> list[str] | None:
        """The fields of the first readable line of an account or group."""
        rows = (line.split(":") for line in self.of(name))
        return next((row for row in rows if len(row) == self._fields and number(row[2]) >= 0), None)

    def named(self, number: int) -> list[str]:
        """Who has a number."""
        return list(self._named.get(number, ()))

    @property
    def numbers(self) -> set[int]:
        """All numbers that somebody has."""
        return {number for number, names in self._named.items() if names}

    @property
    def names(self) -> list[str]:
        """All names, in their order."""
        return [name for name, places in self._at.items() if places]

    def put(self, name: str, new: list[str]) -> None:
        """Replace all lines of `name`, at the place of the first, else before the lines of NIS, else at the end."""
        old = self.of(name)
        if old == new:
            return
        self.there = True
        places = self._at.pop(name, [])
        for line in old:
            fields = line.split(":")
            if len(fields) == self._fields:
                self._named.get(number(fields[2]), {}).pop(name, None)
        for at in places:
            self._set(at, None)
        for position, line in enumerate(new):
            if position < len(places):
                at = places[position]
                self._set(at, line)
            else:
                self._more.append(line)
                at = -len(self._more)
            self._index(at, line)

    def _set(self, at: int, line: str | None) -> None:
        """Places below 0 are those of added lines."""
        if at < 0:
            self._more[-at - 1] = line
        else:
            self._lines[at] = line

    def _index(self, at: int, line: str) -> None:
        name = _key(line)
        if not name:
            return
        self._at.setdefault(name, []).append(at)
        fields = line.split(":")
        if self._fields and len(fields) == self._fields and number(fields[2]) >= 0:
            self._named.setdefault(number(fields[2]), {})[name] = None


def account(table: Table, name: str) -> Account | None:
    """An account of passwd."""
    row = table.row(name)
    return Account(name, number(row[2]), number(row[3]), row[5]) if row and number(row[3]) >= 0 else None


def group(table: Table, name: str) -> GroupRow | None:
    """A group of group."""
    row = table.row(name)
    return GroupRow(name, number(row[2]), tuple(one for one in row[3].split(",") if one)) if row else None


def _end(lines: list[str]) -> int:
    """Where lines are added: before those of NIS, and before what follows the last line's end."""
    for at, line in enumerate(lines):
        if line.startswith(("+", "-")):
            return at
    return len(lines) - 1 if lines[-1] == "" else len(lines)


def _key(line: str) -> str:
    """The name in a line; "" for a comment, a line of NIS, or one without fields."""
    return "" if line.startswith(("+", "-", "#")) or ":" not in line else line.partition(":")[0]


def number(text: str) -> int:
    """A number in a field; -1 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
