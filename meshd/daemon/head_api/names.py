"""Names that people mistype: of machines, slots and pools. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice

from meshd.model.desired import Desired
from meshd.model.ids import slot_index, slot_name
from meshd.model.machine import Machine

NAMES_MAX = 3000
"""At most this many names of a kind are compared."""


def pool_of_slot(slot: str, desired: Desired) -> str | None:
    """The pool of a slot, with or without a machine; None: no pool has such a slot."""
    for name, pool in desired.pools.items():
        index = slot_index(name, slot)
        if index is not None and index <= pool.max_nodes:
            return name
    return None


def near_words(subject: str, desired: Desired, live: Sequence[Machine], *, pools: bool = False) -> str:
    """Names that are similar to a mistyped one, as a cure.

    Args:
        subject: as the user wrote it.
        desired: has the pools, and so the slots.
        live: the machines that are not GONE.
        pools: names of pools and of slots without a machine count too.
    """
    every = (slot_name(name, i) for name, pool in desired.pools.items() for i in range(1, pool.max_nodes + 1))
    slots = every if pools else (m.slot for m in live)
    named = [*desired.pools] if pools else []
    names = [*named, *islice(slots, NAMES_MAX), *(m.name for m in islice(live, NAMES_MAX))]
    near = get_close_matches(subject, names, n=5, cutoff=0.6)
    if near:
        return f"there is {', '.join(near)}; `meshctl nodes` lists the machines"
    known = f"pools are: {', '.join(desired.pools) or 'none'}; " if pools else ""
    return f"{known}`meshctl nodes` lists the machines"
