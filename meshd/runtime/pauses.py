"""How long to wait before the next try. PURE."""

from __future__ import annotations

DOUBLINGS_MAX = 64
"""No pause grows further than by so many; more, and a float would overflow in the end."""


def growing_pause_s(failures: int, first_s: float, most_s: float) -> float:
    """The pause after so many failures in a row: it doubles with each, up to a limit.

    Args:
        failures: how many there were; the first one, and none, mean `first_s`.
        first_s: the shortest pause.
        most_s: the longest one; never less than `first_s`.
    """
    doublings = min(max(failures - 1, 0), DOUBLINGS_MAX)
    return min(first_s * 2.0**doublings, max(most_s, first_s))
