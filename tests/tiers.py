"""How much a search tries: a bounded part in each run, and the long form at night.

The bounded part is the same in each run. What a search once found is kept as an example of its own, which each run
tries. `tests/run --nightly` looks for more.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

EXAMPLES = 2000
"""What hypothesis tries at night where a test gives no number of its own."""

_nightly = False


def begin_nightly() -> None:
    """From now on, `bounded` answers with the long form. To be called before a module of tests is read."""
    global _nightly
    _nightly = True


def bounded(each_run: T, nightly: T) -> T:
    """What a search is given: how many histories, seeds or examples."""
    return nightly if _nightly else each_run
