"""Python's cyclic garbage collector, told what kind of program this is."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 50_000
"""So many new objects before a look at the young ones: a tick over 10,000 machines makes fewer."""


def tune_gc() -> None:
    """Call once the fleet is in memory. Its records are no garbage: walking them all took longer than a tick.

    What is freed by its reference count, which is nearly all, is freed at once as before.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)


_lock = threading.Lock()
_holders = 0


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep the collector from running, in all threads, until the last of those who asked for it has left.

    For work that makes a great many objects, none of them garbage: parsing a cloud's listing of 10,000 machines. Each
    look at them costs and finds nothing.
    """
    global _holders
    with _lock:
        _holders += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if not _holders:
                gc.enable()
