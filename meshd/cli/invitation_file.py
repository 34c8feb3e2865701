"""The file of `meshctl invite --file`: one machine on each line, with options of its own."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshd.cli.errors import CliError, ExitCode

KEYS = frozenset({"usd-per-hour", "wake-mac", "wake-command", "sleep-command", "ssh"})


@dataclass(frozen=True, slots=True)
class Line:
    """A machine to invite.

    Attributes:
        options: by name without dashes, as on the command line.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


def parse(text: str, source: str) -> list[Line]:
    """The machines. Words are as in a shell; `#` begins a comment.

    Raises:
        CliError: a line cannot be read, or a name comes twice.
    """
    found = list(_lines(text, source))
    names = [line.name for line in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not found:
        why = f"names {', '.join(twice)} twice" if twice else "names no machine"
        raise CliError(f"{source} {why}", "write one machine on each line", code=ExitCode.USAGE, kind="file")
    return found


def _lines(text: str, source: str) -> Iterator[Line]:
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise _fault(source, number, str(error)) from None
        if not words:
            continue
        options = {}
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals or key not in KEYS:
                raise _fault(source, number, f"{word!r} is none of {', '.join(f'{key}=...' for key in sorted(KEYS))}")
            options[key] = value
        yield Line(words[0], options)


def _fault(source: str, number: int, why: str) -> CliError:
    cure = "write: NAME [usd-per-hour=0.1] [ssh=root@10.0.0.5] ..."
    return CliError(f"{source}:{number}: {why}", cure, code=ExitCode.USAGE, kind="file")
