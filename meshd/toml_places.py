"""Where in a TOML file a key stands, for messages that name the line. PURE.

tomllib does not tell. This reads headers and keys alone, in text that tomllib has accepted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEYS = rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*"
_HEADER = re.compile(rf"\s*(\[\[?){_KEYS}\]")
_ENTRY = re.compile(rf"{_KEYS}=")
_OPENERS = ('"""', "'''", '"', "'", "#")


class Places:
    """The lines of a file's keys."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, ...], int] = {}
        for path, line in _scan(text):
            for end in range(1, len(path) + 1):
                self._lines.setdefault(path[:end], line)

    def line(self, path: Sequence[str | int]) -> int:
        """The line, counted from 1, of a key or of the nearest table around it; 0 when there is none."""
        names = tuple(str(part) for part in path)
        while names and names not in self._lines:
            names = names[:-1]
        return self._lines.get(names, 0)


def _scan(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Each table and each key with its line; within a value that spans lines there are none.

    The tables of an array have numbers too: `("jobs", "0", "nodes")`.
    """
    table: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    counts: Counter[tuple[str, ...]] = Counter()
    depth, closer = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        start = 0
        if not depth and not closer:
            if header := _HEADER.match(line):
                table = plain = _parts(header[2])
                if header[1] == "[[":
                    counts[table] += 1
                    table = (*table, str(counts[table] - 1))
                yield table, number
                continue
            if entry := _ENTRY.match(line):
                for path in {table, plain}:
                    yield path + _parts(entry[1]), number
                start = entry.end()
        depth, closer = _after(line[start:], depth, closer)


def _parts(keys: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") if part[0] in "\"'" else part for part in re.findall(_KEY, keys))


def _after(rest: str, depth: int, closer: str) -> tuple[int, str]:
    """How many brackets, and which string, are open behind a piece of a value."""
    at = 0
    while at < len(rest):
        if closer:
            if closer[0] == '"' and rest[at] == "\\":
                at += 2
            elif rest.startswith(closer, at):
                at, closer = at + len(closer), ""
            else:
                at += 1
            continue
        opener = next((mark for mark in _OPENERS if rest.startswith(mark, at)), "")
        if opener == "#":
            break
        if opener:
            at, closer = at + len(opener), opener
            continue
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(rest[at], 0)
        at += 1
    return max(depth, 0), closer if len(closer) == 3 else ""  # a plain string ends with its line
