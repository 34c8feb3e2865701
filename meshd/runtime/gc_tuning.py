"""Settings of Python's cyclic garbage collector for a large fleet."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 50_000
"""New objects before a collection of the youngest generation. A tick over 10,000 machines makes fewer."""


def tune_gc() -> None:
    """Exclude the present objects from collections. Call it once the fleet is in memory.

    The fleet's records are no garbage, and a full collection over them took longer than a tick. Objects whose reference
    count drops to 0, which is nearly all, are still freed at once.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)


_lock = threading.Lock()
_holders = 0


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the collector in all threads until the last concurrent user of this context has left it.

    For work that makes very many objects, none of them garbage, such as parsing a cloud's listing of 10,000 machines.
    Each collection would cost time and free nothing.
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
