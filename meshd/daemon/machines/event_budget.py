"""How many events a machine may cause by what its agent says: so many at once, so many a day.

Without a bound a node that changes its mind with every poll would fill the event log and write to the disk all the
time. What it says is in force all the same: its record changes in memory, and an agent says all of it with each poll.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.reporting import problem
from meshd.runtime.clock import Clock
from meshd.runtime.tokenbucket import TokenBuckets

BURST: Final = 40
"""The whole life of a machine that is well has fewer."""
EVERY_S: Final = 300.0
SUMMED_EVERY_S: Final = 3600.0
SHOWN_FOR: Final = timedelta(hours=1)


class EventBudget:
    """Counts them.

    Args:
        clock: time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets = TokenBuckets(BURST, EVERY_S)
        self._sums = TokenBuckets(1, SUMMED_EVERY_S)
        self._left_out: Counter[str] = Counter()
        self._flooded: dict[str, datetime] = {}

    def may(self, machine: str) -> bool:
        """Whether an event of this machine may be written now; one that may not is counted."""
        may = self._buckets.try_take(machine, self._clock.monotonic_s())
        if not may:
            self._left_out[machine] += 1
            self._flooded[machine] = self._clock.now()
        return may

    def summary(self, machine: str) -> str:
        """The text of the one event that stands for those that were left out; "" while there is none to be written."""
        count = self._left_out.get(machine, 0)
        if not count or not self._sums.try_take(machine, self._clock.monotonic_s()):
            return ""
        del self._left_out[machine]
        return f"its agent reports too much: {count} reports since the last such event are not written down"

    def problems(self, alive: Collection[str]) -> Iterable[ProblemView]:
        """Machines that said too much lately.

        Args:
            alive: the names of all that are not GONE; the others are forgotten.
        """
        now = self._clock.now()
        self._flooded = {n: at for n, at in self._flooded.items() if n in alive and now - at < SHOWN_FOR}
        for name in self._left_out.keys() - set(alive):
            del self._left_out[name]
        for name in sorted(self._flooded):
            text = f"{name} reports so much that meshd writes only a part of it down"
            cure = f"see `meshctl events --machine {name}`; `meshctl remove {name}` gives the machine back"
            yield problem(ProblemCode.EVENT_FLOOD, "warning", text, cure, machine=name)
