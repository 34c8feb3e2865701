"""PURE: strict parsing of JSON from other programs: finite numbers, and strings without control characters."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from meshd.plaintext import plain_json

INT_MAX: Final = 2**63 - 1


def loads(raw: bytes | str) -> Any:
    """Parse JSON, and remove control characters from its strings.

    Raises:
        ValueError: it is no JSON, has NaN, Infinity or a number out of range, or is nested too deeply.
    """
    try:
        value = json.loads(raw, parse_constant=_no_constant, parse_float=_finite, parse_int=_in_range)
        # Only escapes, bytes beyond ASCII, and DEL can produce characters that must be removed.
        plain = raw.isascii() and (b"\\u" not in raw and b"\x7f" not in raw if isinstance(raw, bytes) else False)
        return value if plain else plain_json(value)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError("a number is beyond all ranges")
    return value


def _in_range(word: str) -> int:
    if len(word) > 20 or abs(value := int(word)) > INT_MAX:
        raise ValueError("a number is beyond all ranges")
    return value
