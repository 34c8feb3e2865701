"""PURE: slurm.conf with all included files, in the order in which Slurm reads them.

A relative `Include` in an included file starts, by version, from the directory of that file (22.05) or from Slurm's own
directory (24.11); both measured. `%c` stands for the cluster's name. Slurm has no globs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from meshd.slurm.capabilities import SlurmVersion
from meshd.slurm.conf import Conf, Line, parse
from meshd.slurm.init.codes import InitRefused, Refusal

DEFAULT = "DEFAULT"
DEPTH_MAX = 32

INCLUDES_BY_CONF_DIR = SlurmVersion((23, 2))
"""From this release on (or with an unknown version) a nested relative Include starts from Slurm's directory."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A line and its place: the file, and the number of its first physical line, from 1."""

    file: PurePosixPath
    number: int
    line: Line

    @property
    def where(self) -> str:
        """The place, for people: `/etc/slurm/slurm.conf line 12`."""
        return f"{self.file} line {self.number}"

    def value(self, key: str) -> str:
        """The value of a key on this line; "" when it has none."""
        return self.line.value(key) or ""


@dataclass(frozen=True, slots=True)
class Missing:
    """An Include of a missing file: Slurm waits 60 s for it and then gives up."""

    at: Placed
    path: PurePosixPath


@dataclass(frozen=True, slots=True)
class Record:
    """A NodeName or PartitionName line with the DEFAULT lines before it filled in; keys in lower case."""

    at: Placed
    name: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tree:
    """All files from `start` on.

    Attributes:
        files: each file that was read, by its absolute path, in the order of the first read.
        lines: every line of all files in Slurm's order. An Include comes before the lines of its file.
    """

    start: PurePosixPath
    files: Mapping[PurePosixPath, Conf]
    lines: tuple[Placed, ...]
    missing: tuple[Missing, ...] = ()

    def last(self, key: str) -> Placed | None:
        """The line that sets the value in force of a simple key."""
        found = None
        for placed in self.lines:
            if not placed.line.is_record and placed.line.value(key) is not None:
                found = placed
        return found

    def get(self, key: str) -> str | None:
        """The value in force of a simple key; None when no file sets it."""
        placed = self.last(key)
        return None if placed is None else placed.line.value(key)

    def get_all(self, key: str) -> tuple[str, ...]:
        """Every value of a key that may occur several times (SlurmctldHost)."""
        return tuple(p.value(key) for p in self.lines if not p.line.is_record and p.line.value(key) is not None)

    def list_of(self, key: str) -> tuple[str, ...]:
        """The items in force of a comma list."""
        return tuple(item.strip() for item in (self.get(key) or "").split(",") if item.strip())

    def opened_by(self, key: str) -> Iterator[Placed]:
        """The lines of the records that `key` opens, with the DEFAULT ones."""
        return (p for p in self.lines if p.line.is_record and p.line.pairs[0].key.lower() == key.lower())

    def defaults(self, key: str) -> tuple[Placed, ...]:
        """The DEFAULT lines of a record."""
        return tuple(p for p in self.opened_by(key) if p.value(key).upper() == DEFAULT)

    def records(self, key: str) -> tuple[Record, ...]:
        """The records without the DEFAULT ones, each with the defaults before it filled in."""
        defaults: dict[str, str] = {}
        found: list[Record] = []
        for placed in self.opened_by(key):
            own = {pair.key.lower(): pair.value for pair in placed.line.pairs[1:]}
            name = placed.line.pairs[0].value
            if name.upper() == DEFAULT:
                defaults.update(own)
            else:
                found.append(Record(placed, name, {**defaults, **own}))
        return tuple(found)


@dataclass(slots=True)
class _Reading:
    load: Callable[[PurePosixPath], str | None]
    by_file: bool
    start: PurePosixPath
    files: dict[PurePosixPath, Conf] = field(default_factory=dict)
    lines: list[Placed] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    cluster: str = ""


def read_tree(
    start: PurePosixPath, load: Callable[[PurePosixPath], str | None], version: SlurmVersion | None = None
) -> Tree:
    """Read a file and the files that it includes.

    Args:
        start: the absolute path of slurm.conf, gres.conf or the like.
        load: returns the text of a file by its absolute path; None when it is missing.
        version: of the Slurm that reads it; None means the newest.

    Raises:
        InitRefused: files include each other in a circle.
    """
    reading = _Reading(load, version is not None and version < INCLUDES_BY_CONF_DIR, start)
    text = load(start)
    if text is not None:
        _read(reading, start, text, (start,))
    return Tree(start, reading.files, tuple(reading.lines), tuple(reading.missing))


def _read(reading: _Reading, path: PurePosixPath, text: str, above: tuple[PurePosixPath, ...]) -> None:
    conf = reading.files.setdefault(path, parse(text))
    number = 1
    for line in conf.lines:
        placed = Placed(path, number, line)
        reading.lines.append(placed)
        number += line.raw.count("\n")
        if not line.is_record and line.value("ClusterName") is not None:
            reading.cluster = (line.value("ClusterName") or "").lower()
        if line.include:
            _follow(reading, placed, above)


def _follow(reading: _Reading, placed: Placed, above: tuple[PurePosixPath, ...]) -> None:
    base = placed.file.parent if reading.by_file else reading.start.parent
    path = base / placed.line.include.replace("%c", reading.cluster)
    if path in above or len(above) > DEPTH_MAX:
        raise InitRefused(
            Refusal.INCLUDE_LOOP,
            f"{placed.where}: {path} includes itself, over {len(above)} files: no Slurm daemon would start",
            f"remove that Include line from {placed.file}",
        )
    text = reading.load(path)
    if text is None:
        reading.missing.append(Missing(placed, path))
    else:
        _read(reading, path, text, (*above, path))
