"""PURE: slurm.conf, gres.conf and the like as lines that meshd can read, and change without touching the others.

The grammar is that of Slurm's `src/common/parse_config.c`. Slurm removes comments first: `#` starts one unless a
backslash stands before it. Then a backslash at the end (spaces may follow) joins the next line. Keys have any case and
any space around `=`. A value is one word, or text in double quotes. A record (`NodeName=...`) takes the rest of its
line; any other key has a line of its own. If a key occurs several times, the last one is in force. `Include FILE`
starts in the first column. Text that Slurm cannot read is kept, and is in `Line.unread`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshd.errors import SlurmError

RECORD_KEYS = frozenset({"nodename", "partitionname", "nodeset", "downnodes", "frontendname", "switchname", "name"})
"""Keys that open a record: what follows on their line belongs to it."""

SPACES = " \t\n\v\f\r"
"""The characters of C's isspace(). Python's str.isspace() accepts more."""

_S = r"[ \t\n\v\f\r]"
_PAIR = re.compile(rf'{_S}*([A-Za-z0-9_.]+){_S}*([-*+/]?)={_S}*("([^"]*)"|[^ \t\n\v\f\r]+)(?={_S}|$)')
_INCLUDE = re.compile(rf"include{_S}+([^ \t\n\v\f\r]+)", re.IGNORECASE)
_PLAIN_VALUE = re.compile(r'^[^\s"#\\]+$')
_KEY = re.compile(r"^[A-Za-z0-9_.]+$")


@dataclass(frozen=True, slots=True)
class Pair:
    """One `key=value`, and where the value (with its quotes) stands in the raw line."""

    key: str
    value: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Line:
    """One logical line: `raw` is its text with comments, continuations and line ends, byte for byte.

    Attributes:
        unread: the part that Slurm cannot read; slurmctld does not start with such a line. "" when it reads all.
    """

    raw: str
    pairs: tuple[Pair, ...] = ()
    include: str = ""
    unread: str = ""

    @property
    def is_record(self) -> bool:
        """Whether the line begins with a key that opens a record."""
        return bool(self.pairs) and self.pairs[0].key.lower() in RECORD_KEYS

    def value(self, key: str) -> str | None:
        """The last value of `key` (any case) on this line; None when it has none."""
        found = [pair.value for pair in self.pairs if pair.key.lower() == key.lower()]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class Conf:
    """A whole file. `render()` returns exactly the text that `parse()` got."""

    lines: tuple[Line, ...]

    def render(self) -> str:
        """The file's text."""
        return "".join(line.raw for line in self.lines)

    def get(self, key: str) -> str | None:
        """The value in force of a simple key (any case); None when it is not set in this file."""
        at = self._last(key)
        return None if at is None else self.lines[at[0]].pairs[at[1]].value

    def get_all(self, key: str) -> tuple[str, ...]:
        """Every value of a simple key that may occur several times (SlurmctldHost), in order."""
        return tuple(pair.value for line in self._simple() for pair in line.pairs if pair.key.lower() == key.lower())

    def list_of(self, key: str) -> tuple[str, ...]:
        """The items of a comma list; empty when it is not set."""
        return tuple(item.strip() for item in (self.get(key) or "").split(",") if item.strip())

    def records(self, key: str) -> tuple[Mapping[str, str], ...]:
        """The records that `key` opens, in order, with the DEFAULT ones. Keys are in lower case."""
        return tuple(
            {pair.key.lower(): pair.value for pair in line.pairs}
            for line in self.lines
            if line.is_record and line.pairs[0].key.lower() == key.lower()
        )

    def records_resolved(self, key: str) -> tuple[Mapping[str, str], ...]:
        """The records without the DEFAULT ones, each with the defaults that stood before it filled in."""
        defaults: dict[str, str] = {}
        resolved: list[Mapping[str, str]] = []
        for record in self.records(key):
            if record[key.lower()].upper() == "DEFAULT":
                defaults.update((k, v) for k, v in record.items() if k != key.lower())
            else:
                resolved.append({**defaults, **record})
        return tuple(resolved)

    def includes(self) -> tuple[str, ...]:
        """What Include lines name, in order."""
        return tuple(line.include for line in self.lines if line.include)

    def with_value(self, key: str, value: str) -> Conf:
        """With `key` set to `value`: rewrites the occurrence in force in place, or appends a line.

        Raises:
            SlurmError: a key or value that cannot be written (line breaks, double quotes).
        """
        text = quote(value)
        if not _KEY.match(key):
            raise SlurmError(f"{key!r} is not a slurm.conf key")
        at = self._last(key)
        if at is None:
            return self.with_line(f"{key}={text}")
        line = self.lines[at[0]]
        pair = line.pairs[at[1]]
        if pair.value == value:
            return self
        new = _read(line.raw[: pair.start] + text + line.raw[pair.end :])
        return replace(self, lines=(*self.lines[: at[0]], new, *self.lines[at[0] + 1 :]))

    def with_list_item(self, key: str, item: str) -> Conf:
        """With `item` in the comma list `key`; it replaces an item of the same name (before `=`) and another value.

        Raises:
            SlurmError: the present list has double quotes in it, and cannot be written again.
        """
        name = item.partition("=")[0].strip().lower()
        old = self.list_of(key)
        kept = [has for has in old if has.partition("=")[0].strip().lower() != name]
        return self if item in old else self.with_value(key, ",".join([*kept, item]))

    def with_include(self, name: str) -> Conf:
        """With an `Include name` line, appended when there is none."""
        if not _PLAIN_VALUE.match(name):
            raise SlurmError(f"{name!r} cannot be included: spaces, quotes and # are not possible there")
        return self if name in self.includes() else self.with_line(f"Include {name}")

    def with_line(self, line: str) -> Conf:
        """With one more line at the end, in the file's own line ending; the old text is a prefix of the new."""
        if "\n" in line or "\r" in line:
            raise SlurmError("a line cannot have a line break in it")
        ending = "\r\n" if "\r\n" in self.render() else "\n"
        text = self.render()
        while _unfinished(text):
            text += ending
        return parse(f"{text}{line}{ending}")

    def with_line_at(self, index: int, line: str) -> Conf:
        """With one more line before the logical line `index`; at the end when `index` is too large."""
        if index >= len(self.lines):
            return self.with_line(line)
        ending = "\r\n" if "\r\n" in self.render() else "\n"
        return replace(self, lines=(*self.lines[:index], _read(f"{line}{ending}"), *self.lines[index:]))

    def without(self, index: int) -> Conf:
        """Without the logical line `index`."""
        return replace(self, lines=(*self.lines[:index], *self.lines[index + 1 :]))

    def with_raw(self, index: int, raw: str) -> Conf:
        """With other text in place of the logical line `index`."""
        return parse(
            "".join([*(line.raw for line in self.lines[:index]), raw, *(x.raw for x in self.lines[index + 1 :])])
        )

    def _simple(self) -> Iterator[Line]:
        return (line for line in self.lines if not line.is_record)

    def _last(self, key: str) -> tuple[int, int] | None:
        found = None
        for i, line in enumerate(self.lines):
            if line.is_record:
                continue
            for j, pair in enumerate(line.pairs):
                if pair.key.lower() == key.lower():
                    found = i, j
        return found


def parse(text: str) -> Conf:
    """Parse a file. Never fails: a line that it cannot parse is kept, without pairs.

    Bytes that are not UTF-8 survive when the caller decodes with `surrogateescape` and encodes the same way.
    """
    lines: list[Line] = []
    gathered = ""
    for physical in re.findall(r"[^\n]*\n|[^\n]+", text):
        gathered += physical
        if not _continued(physical):
            lines.append(_read(gathered))
            gathered = ""
    if gathered:
        lines.append(_read(gathered))
    return Conf(tuple(lines))


def quote(value: str) -> str:
    """A value as slurm.conf needs it, in double quotes where necessary.

    Raises:
        SlurmError: it has a line break or a double quote, which Slurm cannot read.
    """
    if re.search(r'["\n\r\0]', value):
        raise SlurmError(f"{value!r} cannot be written to slurm.conf: it has a line break or a double quote")
    if _PLAIN_VALUE.match(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace("#", "\\#") + '"'


def _end(physical: str) -> int:
    """The offset at which Slurm stops reading a physical line: at a comment, or at a NUL."""
    end = physical.find("\0")
    end = len(physical) if end < 0 else end
    for match in re.finditer("#", physical[:end]):
        before = physical[: match.start()]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            return match.start()
    return end


def _continued(physical: str) -> bool:
    """Whether the next physical line belongs to this one: without its comment it ends with a backslash."""
    if "\\" not in physical:
        return False
    bare = physical[: _end(physical)].rstrip(SPACES)
    return (len(bare) - len(bare.rstrip("\\"))) % 2 == 1


def _unfinished(text: str) -> bool:
    """Whether a line appended to this text would join the last line."""
    if not text:
        return False
    if not text.endswith("\n"):
        return True
    return _continued(re.findall(r"[^\n]*\n", text)[-1])


def _logical(raw: str) -> tuple[str, Sequence[int]]:
    """The line as Slurm's matcher sees it, and the offset in `raw` of each of its characters."""
    if "\\" not in raw and "\0" not in raw:
        plain = raw.partition("#")[0].replace("\n", "")
        return plain, range(len(plain))
    text: list[str] = []
    where: list[int] = []
    offset = 0
    for physical in re.findall(r"[^\n]*\n|[^\n]+", raw):
        end = _end(physical)
        if _continued(physical):
            end = len(physical[:end].rstrip(SPACES)) - 1
        at = 0
        while at < end:
            if physical[at] == "\\" and at + 1 < end:
                at += 1
            if physical[at] != "\n":
                text.append(physical[at])
                where.append(offset + at)
            at += 1
        offset += len(physical)
    return "".join(text), where


def _read(raw: str) -> Line:
    text, where = _logical(raw)
    include = _INCLUDE.match(text)
    if include:
        return Line(raw, include=include[1], unread=text[include.end() :].strip(SPACES))
    pairs: list[Pair] = []
    at = 0
    rest = 0
    while match := _PAIR.match(text, at):
        value = match[4] if match[4] is not None else match[3]
        pairs.append(Pair(match[1], value, _value_start(raw, where, match.start(3)), where[match.end(3) - 1] + 1))
        at = match.end()
        if len(pairs) == 1 or pairs[0].key.lower() in RECORD_KEYS:
            rest = at
    return Line(raw, tuple(pairs), unread=text[rest:].strip(SPACES))


def _value_start(raw: str, where: Sequence[int], at: int) -> int:
    """The raw position of a value's first character, with the backslash that may escape it."""
    start = where[at]
    previous = where[at - 1] if at else -1
    return start - 1 if start - 1 > previous and raw[start - 1] == "\\" else start
