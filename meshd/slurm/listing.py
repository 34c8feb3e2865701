"""Reads what squeue and sacct print so that no job can forge a line of it.

Slurm prints names and accounts of jobs as their users wrote them, with any character: a newline and the separator in an
account would read as another job. So each call has a separator of its own that nobody can guess. PURE but for that.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from meshd.errors import SlurmError

SEPARATOR = "\x1f"
"""Separates the fields of what `lines_of` returns: it is in none of them."""

_ENDS = re.compile(f"[\n\r{SEPARATOR}]")


def new_mark() -> str:
    """A separator for one call. It begins with no digit: squeue would take that for a width."""
    return f"{SEPARATOR}x{secrets.token_hex(8)}{SEPARATOR}"


def squeue_env(fields: Sequence[str], mark: str) -> dict[str, str]:
    """The environment in which squeue prints these fields, each followed by the mark.

    On its command line every user would see the mark. squeue prints a field with a suffix and no width whole, and does
    not cut it at 20 characters.
    """
    return {"SQUEUE_FORMAT2": ",".join(f"{name}:{mark}" for name in fields)}


def lines_of(text: str, mark: str, count: int) -> str:
    """The text with one line for each record, and each of its fields followed by SEPARATOR.

    Args:
        text: what was printed: after each field the mark, and after each record a newline.
        mark: that of the call.
        count: fields of a record.

    Raises:
        SlurmError: it is no such listing.
    """
    if not text:
        return ""
    *fields, rest = text.split(mark)
    records = [fields[at : at + count] for at in range(0, len(fields), count)]
    whole = len(fields) % count == 0 and rest == "\n" and all(first.startswith("\n") for first, *_ in records[1:])
    if not whole or not records:
        raise SlurmError(f"this is no listing of jobs: {text.replace(mark, ' ').strip()[:200]!r}")
    for record in records[1:]:
        record[0] = record[0].removeprefix("\n")
    return "".join("".join(f"{_ENDS.sub(' ', field)}{SEPARATOR}" for field in record) + "\n" for record in records)
