"""PURE: makes foreign text safe for a terminal: it cannot move the cursor, or hide or reverse other text."""

from __future__ import annotations

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """Replace control characters (C0, DEL, C1), bidirectional overrides and the like. Line breaks and tabs stay."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else REPLACEMENT for c in text)


def clean_line(text: str) -> str:
    """As `clean`, and on one line, so that no text can look like a separate line."""
    return clean(" ".join(text.split("\n")).replace("\t", " "))


def json_clean(document: str) -> str:
    """The same JSON document, with an escape in place of each character that is not printable."""
    if document.isascii() and "\x7f" not in document:
        return document
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in document)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
