"""Host lists as Slurm's commands take them: `h100-3`, `h100-[1-4,7]`, `h100-1,h100-3`; also names of machines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

import click

NAMES_MAX = 10_000
"""The most names that one command line may name: the largest pool has as many slots."""

_NAME_MAX = 63
_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?")


def expand(words: Iterable[str]) -> tuple[str, ...]:
    """The names in host lists, each once, in the order of the command line.

    Args:
        words: from the command line; each is a name, a host list, or several of them with commas between.

    Raises:
        click.BadParameter: a name is empty or too long, brackets do not match, or there are too many names.
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
        raise click.BadParameter(f"{word!r} is not a list of nodes: write h100-3, 'h100-[1-4]' or h100-1,h100-3")
    for part in parts:
        yield from _expanded(part) if "[" in part else _checked(part)


def _checked(name: str) -> Iterator[str]:
    """The name, if a node may have it at all. Whether a node does have it is for the daemon to say."""
    if not name.strip():
        raise click.BadParameter("it is empty")
    if len(name) > _NAME_MAX:
        raise click.BadParameter(f"{name[:20]!r}... is longer than {_NAME_MAX} characters: no node has such a name")
    yield name


def _expanded(part: str) -> Iterator[str]:
    """The names of one part with brackets. It counts them before it makes them: a range may have any size."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException  # slow to import, and rarely needed

    sizes = [_size(inner, part) for inner in _BRACKETS.findall(part)]
    if math.prod(sizes) > NAMES_MAX:
        raise click.BadParameter(f"{part!r} has {math.prod(sizes)} names: at most {NAMES_MAX}")
    if re.search(r"[@!&^%\s]", part):
        raise click.BadParameter(f"{part!r} is not a list of nodes: use letters, digits, dashes, brackets and commas")
    try:
        names = list(NodeSet(part, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise click.BadParameter(f"{part!r} is not a list of nodes: {error}") from None
    for name in names:
        yield from _checked(name)


def _size(inner: str, part: str) -> int:
    """How many numbers are between a pair of brackets."""
    size = 0
    for item in inner.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise click.BadParameter(f"{part!r}: {item!r} is neither a number nor a range such as 1-4")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or not step:
            raise click.BadParameter(f"{part!r}: the range {item!r} is empty")
        size += (last - first) // step + 1
    return size
