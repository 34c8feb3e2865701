"""PURE: a marked block of lines in a file of the user's, which init can replace, and take out without a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.slurm.conf import Conf

_BEGIN = "# BEGIN meshd: "
_END = "# END meshd: "


@dataclass(frozen=True, slots=True)
class Block:
    """A block as it stands.

    Attributes:
        first, last: the indexes of its marks among the file's lines.
        lines: what is between them, without line endings.
        note: what its first mark says behind the name.
    """

    first: int
    last: int
    lines: tuple[str, ...]
    note: str


def find(conf: Conf, name: str) -> Block | None:
    """The block of this name; None where the file has none, or only one of its marks."""
    first = None
    for index, line in enumerate(conf.lines):
        text = line.raw.rstrip()
        if text.startswith(f"{_BEGIN}{name}"):
            first = index
        elif text == f"{_END}{name}" and first is not None:
            between = tuple(one.raw.rstrip() for one in conf.lines[first + 1 : index])
            note = conf.lines[first].raw.rstrip().removeprefix(f"{_BEGIN}{name}").removeprefix(": ")
            return Block(first, index, between, note)
    return None


def without(conf: Conf, name: str) -> Conf:
    """The file without the block."""
    block = find(conf, name)
    if block is None:
        return conf
    for _ in range(block.first, block.last + 1):
        conf = conf.without(block.first)
    return conf


def with_block(conf: Conf, name: str, lines: Sequence[str], *, at: int, note: str) -> Conf:
    """The file with the block, in its place if it is there, else before the line `at`.

    Args:
        conf: the file.
        name: the block's.
        lines: its lines, without line endings.
        at: an index; the end of the file when it is too large.
        note: for its first mark, where the block is new.
    """
    block = find(conf, name)
    if block is not None:
        at, note, conf = block.first, block.note, without(conf, name)
    for line in reversed((f"{_BEGIN}{name}: {note}", *lines, f"{_END}{name}")):
        conf = conf.with_line_at(at, line)
    return conf
