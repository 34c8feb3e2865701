"""PURE: the marked block in /etc/hosts. Everything outside it is left as it was, byte for byte."""

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
        roster: name to address. Names and addresses that are none are left out: the file must stay readable.

    Returns:
        The new text; the same text when nothing changes. Applying it twice gives what applying it once gives.
    """
    lines = text.splitlines(keepends=True)
    block = [f"{BEGIN}\n", *_entries(roster), f"{END}\n"]
    begin = _find(lines, BEGIN, 0)
    if begin is None:
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        return "".join([*lines, *block])
    end = _find(lines, END, begin)
    if end is None:
        end = begin  # a lone BEGIN: somebody cut the block; only that line is ours
    return "".join([*lines[:begin], *block, *lines[end + 1 :]])


def _entries(roster: Mapping[str, str]) -> list[str]:
    found = []
    for name in sorted(roster):
        address = roster[name]
        if not _NAME.match(name):
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
