"""PURE: reading loosely typed JSON. tailscaled's JSON may change with any release, so nothing here ever raises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Any, TypeAlias

from meshd.plaintext import TEXT_MAX_CHARS, plain

Json: TypeAlias = Mapping[str, Any]

ITEMS_MAX = 1000
KEY_DESCRIPTION_MAX = 50
"""So many characters does Tailscale keep of an auth key's description."""


def table(value: object) -> Json:
    """The value if it is a JSON object, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> tuple[Any, ...]:
    """The value where it is a JSON array, else nothing: Go writes an empty slice as null."""
    return tuple(value) if isinstance(value, list) else ()


def text(source: Json, key: str) -> str:
    """A string member, "" when absent or of another type."""
    value = source.get(key)
    return plain(value, TEXT_MAX_CHARS) if isinstance(value, str) else ""


def texts(source: Json, key: str) -> tuple[str, ...]:
    """The strings of an array member."""
    return tuple(plain(item, TEXT_MAX_CHARS) for item in items(source.get(key))[:ITEMS_MAX] if isinstance(item, str))


def number(source: Json, key: str) -> int:
    """A whole-number member, 0 when absent or of another type."""
    value = source.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def flag(source: Json, key: str) -> bool:
    """A boolean member; absent and null are False, as tailscaled means them."""
    return source.get(key) is True


def moment(source: Json, key: str) -> datetime | None:
    """An RFC 3339 member as UTC; None when absent, unreadable, or Go's zero time (year 1: never).

    Rounded to the second, as a status has them: the bus has the same times to the nanosecond.
    """
    value = text(source, key)
    if not value or value.startswith("0001-"):
        return None
    try:
        at = datetime.fromisoformat(value)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        return at.replace(microsecond=0) + timedelta(seconds=at.microsecond >= 500_000)
    except (ValueError, OverflowError):
        return None


def first_ipv4(addresses: Iterable[str]) -> str:
    """The first IPv4 address of a list of addresses or prefixes, "" when there is none."""
    return next(filter(None, map(_ipv4, addresses)), "")


@lru_cache(maxsize=65536)
def _ipv4(address: str) -> str:
    """Remembered, for the same thousands of addresses come with every poll."""
    with suppress(ValueError):
        return str(IPv4Address(address.partition("/")[0]))
    return ""
