"""PURE: takes a change of a text back, line by line, from a text that somebody else has changed since."""

from __future__ import annotations

import difflib
from collections import Counter


def take_back(before: str, after: str, now: str) -> str:
    """`now` without what the change from `before` to `after` did to it.

    Lines that the change added go, as far as they are there; lines that it removed come back, after the line that they
    followed. All others stay, in their order.

    Args:
        before: the text before the change.
        after: the text right after it.
        now: the text that is there.
    """
    old, new, lines = (text.splitlines(keepends=True) for text in (before, after, now))
    gone: list[tuple[str, str]] = []  # (the line that it followed, a line that the change removed)
    added: Counter[str] = Counter()
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag in ("replace", "delete"):
            gone += [(old[i - 1] if i else "", old[i]) for i in range(i1, i2)]
        if tag in ("replace", "insert"):
            added.update(new[j1:j2])
    moved = Counter(line for _, line in gone) & added
    gone = [(previous, line) for previous, line in gone if not _use(moved, line)]
    added -= Counter(line for line in old)  # a line that was there already, and only moved, is not ours
    kept = []
    for line in reversed(lines):  # the last of equal lines is the newest
        if not _use(added, line):
            kept.append(line)
    kept.reverse()
    have = Counter(kept)
    for previous, line in gone:
        if _use(have, line):
            continue
        key = line.partition(":")[0]
        if ":" in line and any(one.partition(":")[0] == key for one in kept):
            continue  # a table with names: somebody has given the name another line
        place = kept.index(previous) + 1 if previous in kept else (0 if not previous else len(kept))
        if place and not kept[place - 1].endswith("\n"):
            kept[place - 1] += "\n"
        kept.insert(place, line if place == len(kept) or line.endswith("\n") else f"{line}\n")
    return "".join(kept)


def _use(counts: Counter[str], line: str) -> bool:
    """Take one of this line, if there is any."""
    if counts[line] <= 0:
        return False
    counts[line] -= 1
    return True
