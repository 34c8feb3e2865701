"""Words for man: escaped text and the few macros that the pages use. PURE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_LINK = re.compile(r"\[([^\]]+)\]\(([^)]*)\)")
_MARKED = re.compile(r"(`[^`]+`|\*\*[^*]+\*\*)")


def escaped(text: str) -> str:
    """Text that man prints as it is."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", plain, flags=re.M)


def inline(markdown: str) -> str:
    """A line of Markdown: code and strong words in bold, links as their words."""
    text = _LINK.sub(lambda found: found[1], markdown)
    parts = (
        f"\\fB{escaped(part.strip('`*'))}\\fR" if _MARKED.fullmatch(part) else escaped(part)
        for part in _MARKED.split(text)
    )
    line = "".join(parts)
    return f"\\&{line}" if line.startswith((".", "'")) else line


def header(name: str, section: int, version: str, manual: str) -> str:
    """The first line of a page."""
    return f'.TH {name.upper()} {section} "" "meshd {version}" "{manual}"'


def section(title: str) -> str:
    """A section's title."""
    return f".SH {escaped(title).upper()}"


def entry(term: str, meaning: str) -> Iterator[str]:
    """A term and what it means, indented; both are roff already."""
    yield from (".TP", f"\\fB{term}\\fR", meaning)


def verbatim(lines: Iterable[str]) -> Iterator[str]:
    """Lines that are kept as they are."""
    yield from (".PP", ".nf", ".RS 4")
    yield from (escaped(line) for line in lines)
    yield from (".RE", ".fi")


def paragraphs(text: str) -> Iterator[str]:
    """Plain text; an empty line begins a new paragraph, and a block after a backspace keeps its lines."""
    for block in text.strip("\n").split("\n\n"):
        if block.lstrip().startswith("\b"):
            yield from verbatim(block.lstrip().removeprefix("\b").strip("\n").splitlines())
        else:
            yield ".PP"
            yield escaped(" ".join(block.split()))
