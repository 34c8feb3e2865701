"""Nodes as Slurm's commands take them: `h100-3`, `h100-[1-4,7]`, `h100-1,h100-3`, and machines' own names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

import click

NAMES_MAX = 10_000
"""The most names that one command line may stand for: as many slots as a pool may have."""

_NAME_MAX = 63
_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?")


def expand(words: Iterable[str]) -> tuple[str, ...]:
    """The names that host lists stand for, each once, in the order in which they were written.

    Args:
        words: as given on the command line; each may be a name, a host list, or several with commas between them.

    Raises:
        click.BadParameter: one is empty, has brackets that do not match, or stands for too many names.
    """
    found: dict[str, None] = {}
    for word in words:
        for name in _names(word):
            found[name] = None
            if len(found) > NAMES_MAX:
                raise click.BadParameter(f"more than {NAMES_MAX} names")
    return tuple(found)


def _names(word: str) -> Iterator[str]:
    parts = _PART.findall(word)
    if not parts or word != ",".join(parts):
        raise click.BadParameter(f"{word!r} is no list of nodes: write h100-3, 'h100-[1-4]' or h100-1,h100-3")
    for part in parts:
        yield from _expanded(part) if "[" in part else _whole(part)


def _whole(name: str) -> Iterator[str]:
    """One name. What is no name of a node at all is refused here, what there is not is for the daemon to say."""
    if not name.strip():
        raise click.BadParameter("it is empty")
    if len(name) > _NAME_MAX:
        raise click.BadParameter(f"{name[:20]!r}... is longer than {_NAME_MAX} characters, which no name is")
    yield name


def _expanded(part: str) -> Iterator[str]:
    """The names of one part with brackets. They are counted before they are made: a range may be of any size."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException  # most calls name no range

    sizes = [_size(inner, part) for inner in _BRACKETS.findall(part)]
    if math.prod(sizes) > NAMES_MAX:
        raise click.BadParameter(f"{part!r} stands for {math.prod(sizes)} names, which is more than {NAMES_MAX}")
    if re.search(r"[@!&^%\s]", part):
        raise click.BadParameter(f"{part!r} is no list of nodes: only letters, digits, dashes, brackets and commas")
    try:
        names = list(NodeSet(part, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise click.BadParameter(f"{part!r} is no list of nodes: {error}") from None
    for name in names:
        yield from _whole(name)


def _size(inner: str, part: str) -> int:
    """How many numbers a pair of brackets stands for."""
    size = 0
    for item in inner.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise click.BadParameter(f"{part!r}: {item!r} is neither a number nor a range such as 1-4")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or not step:
            raise click.BadParameter(f"{part!r}: {item!r} runs backwards")
        size += (last - first) // step + 1
    return size
