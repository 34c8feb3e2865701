"""PURE: the line of plugstack.conf by which Slurm's commands on the head load pyxis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Final

PLUGSTACK_D: Final = PurePosixPath("/etc/slurm/plugstack.conf.d")
"""What Debian's plugstack.conf includes, and where pyxis' documentation puts its line."""

PYXIS: Final = "spank_pyxis.so"
LINE_CHARS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class PyxisLine:
    """How the head loads pyxis.

    Attributes:
        line: `required PATH ARGUMENTS`; "" where it does not, or only optionally.
        shipped: the line is in plugstack.conf itself, which Slurm ships to the machines. It does not ship the files
            that plugstack.conf includes.
    """

    line: str = ""
    shipped: bool = False


NO_PYXIS: Final = PyxisLine()


def pyxis_line(plugstack: str, included: Mapping[PurePosixPath, str]) -> PyxisLine:
    """Find it.

    Args:
        plugstack: the text of plugstack.conf.
        included: the texts of the files in `PLUGSTACK_D`, by path.
    """
    found = _required(plugstack)
    if found:
        return PyxisLine(found, shipped=True)
    patterns = [words[1] for words in map(str.split, plugstack.splitlines()) if words[:1] == ["include"] and words[1:]]
    for path, text in sorted(included.items()):
        found = _required(text)
        if found and any(fnmatch(str(path), pattern) for pattern in patterns):
            return PyxisLine(found)
    return NO_PYXIS


def _required(text: str) -> str:
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["required"] and words[1:] and PurePosixPath(words[1]).name == PYXIS:
            plain = " ".join(words)
            return plain if plain.isprintable() and len(plain) <= LINE_CHARS_MAX else ""
    return ""
