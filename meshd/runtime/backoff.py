"""Exponential backoff. PURE."""

from __future__ import annotations

DOUBLINGS_MAX = 64
"""The pause stops doubling here, before the float overflows."""


def backoff_s(failures: int, first_s: float, most_s: float) -> float:
    """The pause before the next try, in seconds. It doubles with each failure.

    Args:
        failures: consecutive failures; 0 and 1 both give `first_s`.
        first_s: the shortest pause.
        most_s: the longest pause; at least `first_s`.
    """
    doublings = min(max(failures - 1, 0), DOUBLINGS_MAX)
    return min(first_s * 2.0**doublings, max(most_s, first_s))
