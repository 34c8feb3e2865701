"""Python's cyclic garbage collector, told what kind of program this is."""

from __future__ import annotations

import gc

YOUNG = 50_000
"""So many new objects before a look at the young ones: a tick over 10,000 machines makes fewer."""


def calm() -> None:
    """Call once the fleet is in memory. Its records are no garbage: walking them all took longer than a tick.

    What is freed by its reference count, which is nearly all, is freed at once as before.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)
