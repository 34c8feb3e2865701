"""Names that people mistype: of machines, slots and pools. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice

from meshd.model.desired import Desired
from meshd.model.ids import slot_index, slot_name
from meshd.model.machine import Machine

NAMES_MAX = 3000
"""So many names of a kind are looked through for one that is near."""


def pool_of_slot(slot: str, desired: Desired) -> str | None:
    """The pool that a slot is of, whether a machine stands there or not; None when no pool has such a slot."""
    for name, pool in desired.pools.items():
        index = slot_index(name, slot)
        if index is not None and index <= pool.max_nodes:
            return name
    return None


def near_words(subject: str, desired: Desired, live: Sequence[Machine], *, pools: bool = False) -> str:
    """What somebody who mistyped a name may have meant, as a cure.

    Args:
        subject: what was written.
        desired: has the pools, and so the slots.
        live: the machines that are not GONE.
        pools: a pool's name would do as well; else only a machine's or a slot's with a machine.
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
