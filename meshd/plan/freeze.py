"""What a freeze holds back: every step that rents, ends or deletes. PURE.

What only reads or writes down goes on, and so does the way of a machine that is ordered already: it joins, and becomes
a node. A machine that leaves gets as far as it can come back from: it is drained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from meshd.model.desired import Desired
from meshd.model.machine import Machine, Phase
from meshd.model.plan import Move, Step
from meshd.plan.step_effects import Effect, effect_of

CURE = "`meshctl thaw` lets meshd rent and end machines again"

SUBJECT = "meshd"
"""The subject of a warning about it."""

S = TypeVar("S", bound=Step)


def allowed(desired: Desired, steps: Iterable[S]) -> list[S]:
    """The steps without those that the freeze holds back, if there is one."""
    if desired.freeze is None:
        return list(steps)
    return [step for step in steps if effect_of(step) is Effect.NONE]


def taken_back(desired: Desired, machines: Sequence[Machine], busy: Collection[str]) -> Iterator[Move]:
    """The orders that are not sent, since meshd is frozen: the thaw plans what is wanted then."""
    if desired.freeze is not None:
        for m in machines:
            if m.phase is Phase.REQUESTED and m.name not in busy:
                yield Move(m.name, f"nothing was rented: {desired.freeze.words}", Phase.GONE)
