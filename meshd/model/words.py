"""Small words of texts for people. Pure."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A number with its noun: `1 node`, `0 nodes`, `12 nodes`; the noun takes an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
