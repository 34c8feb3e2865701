"""PURE: the marked block in /etc/hosts. Everything outside it stays, byte for byte.

The node agent has a copy of this file, byte for byte, so that head and nodes make their blocks by the same rules.
Therefore it uses only the standard library of Python 3.9.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

BEGIN = "# BEGIN meshd"
END = "# END meshd"
_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", re.IGNORECASE)


def with_block(text: str, roster: Mapping[str, str]) -> str:
    """The file's text with the block for this roster, in place of an older one or at the end.

    Args:
        text: the whole file as it is.
        roster: name to address; empty: no block. Invalid names and addresses are left out, since the file must stay
            readable. So are names on another line of the file: that line is the user's choice.

    Returns:
        The new text; the same text when nothing changes. Applying it twice gives what applying it once gives.
    """
    before, after = _around(text)
    entries = _entries(roster, _names([*before, *after]))
    block = [f"{BEGIN}\n", *entries, f"{END}\n"] if entries else []
    if block and before and not before[-1].endswith("\n"):
        before[-1] += "\n"
    return "".join([*before, *block, *after])


def read_block(text: str) -> dict[str, str]:
    """The names in the block, each with its address; {} when the file has no block."""
    lines = text.splitlines()
    begin = _find(lines, BEGIN, 0)
    end = _find(lines, END, begin or 0)
    if begin is None or end is None:
        return {}
    words = (line.split() for line in lines[begin + 1 : end])
    return {pair[1]: pair[0] for pair in words if len(pair) == 2}


def _around(text: str) -> tuple[list[str], list[str]]:
    """The lines before the block and those after it; without a block, all are before it."""
    lines = text.splitlines(keepends=True)
    begin = _find(lines, BEGIN, 0)
    if begin is None:
        return lines, []
    end = _find(lines, END, begin)
    if end is None:
        end = begin  # a lone BEGIN: somebody cut the block; only that line is ours
    return lines[:begin], lines[end + 1 :]


def _names(lines: list[str]) -> set[str]:
    return {name.lower() for line in lines for name in line.partition("#")[0].split()[1:]}


def _entries(roster: Mapping[str, str], taken: set[str]) -> list[str]:
    found = []
    for name in sorted(roster):
        address = roster[name]
        if not _NAME.match(name) or name.lower() in taken:
            continue
        try:
            ipaddress.ip_address(address)
        except ValueError:
            continue
        found.append(f"{address}\t{name}\n")
    return found


def _find(lines: list[str], mark: str, start: int) -> int | None:
    for index in range(start, len(lines)):
        if lines[index].strip() == mark:
            return index
    return None
