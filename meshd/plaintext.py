"""PURE: text for people: what others wrote, fit for a terminal, a log line and the journal; counts, times and money."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

TEXT_MAX_CHARS: Final = 2000
"""Enough for a fault in a vendor's own words; more is no message but a document."""

_NOT_PLAIN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]"
)
"""Control characters of both sets (C1 is an escape on some terminals), halves of surrogate pairs, which no UTF-8 can
carry, and the marks that turn the direction of writing."""
_NOT_PLAIN_BUT_LINES: Final = re.compile(_NOT_PLAIN.pattern.replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f"))


def plain(text: str, max_chars: int = TEXT_MAX_CHARS) -> str:
    """One line without control characters: each becomes a space. Longer text is cut and ends in an ellipsis."""
    if len(text) > max_chars:
        text = text[: max_chars - 1] + "…"
    return text if text.isascii() and text.isprintable() else _NOT_PLAIN.sub(" ", text)


def plain_text(text: str, max_chars: int) -> str:
    """As `plain`, but newlines and tabs stay."""
    if len(text) > max_chars:
        text = text[: max_chars - 1] + "…"
    return text if text.isascii() and text.isprintable() else _NOT_PLAIN_BUT_LINES.sub(" ", text)


def plain_lines(text: str, max_chars: int) -> str:
    """As `plain_text`, but of longer text the end is kept, as of a log."""
    return _NOT_PLAIN_BUT_LINES.sub(" ", text[-max_chars:])


def plain_json(value: Any) -> Any:
    """A decoded JSON value with every string in it, names too, without control characters. Lengths are kept."""
    if isinstance(value, str):
        return value if value.isascii() and value.isprintable() else _NOT_PLAIN_BUT_LINES.sub(" ", value)
    if isinstance(value, dict):
        return {plain_json(name): plain_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain_json(one) for one in value]
    return value


def counted(count: int, noun: str) -> str:
    """A number with its noun: `1 node`, `0 nodes`, `12 nodes`; the noun takes an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def usd(amount: float) -> str:
    """An amount of money: `$1,234.50`."""
    return f"${amount:,.2f}"


def age(seconds: float | None) -> str:
    """A span of time in at most two units: `7s`, `3m20s`, `2h05m`, `4d3h`."""
    if seconds is None:
        return "-"
    whole = max(int(seconds), 0)
    minutes, s = divmod(whole, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h}h"
    if hours:
        return f"{hours}h{m:02d}m"
    return f"{minutes}m{s:02d}s" if minutes else f"{s}s"


def ending(end: datetime, now: datetime) -> str:
    """When something ends or ended, to the day where that is far, else to the minute; both times are UTC."""
    if end <= now:
        return f"ended on {end:%Y-%m-%d %H:%M} UTC"
    hours = int((end - now).total_seconds() // 3600)
    if hours >= 48:
        return f"ends on {end:%Y-%m-%d}, in {hours // 24} days"
    return f"ends on {end:%Y-%m-%d %H:%M} UTC, in {counted(hours, 'hour') if hours else 'less than an hour'}"
