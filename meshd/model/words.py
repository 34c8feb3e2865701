"""Small words of texts for people. Pure."""

from __future__ import annotations

from datetime import datetime


def counted(count: int, noun: str) -> str:
    """A number with its noun: `1 node`, `0 nodes`, `12 nodes`; the noun takes an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ending(end: datetime, now: datetime) -> str:
    """When something ends or ended, to the day where that is far, else to the minute; both times are UTC."""
    if end <= now:
        return f"ended on {end:%Y-%m-%d %H:%M} UTC"
    hours = int((end - now).total_seconds() // 3600)
    if hours >= 48:
        return f"ends on {end:%Y-%m-%d}, in {hours // 24} days"
    return f"ends on {end:%Y-%m-%d %H:%M} UTC, in {counted(hours, 'hour') if hours else 'less than an hour'}"
