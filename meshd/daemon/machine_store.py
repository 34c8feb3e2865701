"""The machines' records. A change is always made to the newest record, and journaled with its reason.

What node agents say may change a record too; each machine has a budget of events for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from meshd.api.schema import ProblemView
from meshd.codes import EventKind, ProblemCode
from meshd.daemon.reporting import problem
from meshd.errors import StoreError
from meshd.model.cooldown import TRIED_ALONE, Cooldown, CooldownCause, CooldownKey
from meshd.model.machine import FailureCause, Machine, Phase
from meshd.plan import cooldowns
from meshd.runtime.clock import Clock
from meshd.runtime.tokenbucket import TokenBuckets
from meshd.store.events import NewEvent, Origin
from meshd.store.journal import Journal

log = structlog.get_logger(__name__)


class MachineStore:
    """The journal, with the clock at hand. Every method raises StoreError when it cannot be written."""

    def __init__(self, journal: Journal, clock: Clock, changed: Callable[[], None]) -> None:
        self.journal = journal
        self.clock = clock
        self._changed = changed
        self.node_events = EventBudget(clock)

    def now(self) -> datetime:
        """UTC."""
        return self.clock.now()

    def get(self, name: str) -> Machine:
        """The newest record.

        Raises:
            StoreError: there is none.
        """
        machine = self.journal.machine(name)
        if machine is None:
            raise StoreError(f"{name} is not in the journal")
        return machine

    def new(self, machine: Machine, reason: str) -> Machine:
        """Write a new machine down, before anything is done for it."""
        log.info("machine_requested", machine=machine.name, offer=machine.offer.key, reason=reason)
        self._changed()
        return self.journal.put(
            machine, EventKind.PHASE, f"requested: {reason}", machine.created_at, phase=machine.phase.value,
            slot=machine.slot, offer=machine.offer.key,
        )  # fmt: skip

    def move(
        self,
        name: str,
        to: Phase,
        reason: str,
        *,
        failure: str = "",
        cause: FailureCause = FailureCause.UNKNOWN,
        **changes: Any,
    ) -> Machine:
        """Put a machine into another phase. With a `failure` it is given up, for this `cause`.

        Raises:
            IllegalMove: it may not go there from where it is.
        """
        now = self.now()
        old = self.get(name)
        machine = replace(old.moved(to, now, reason), **changes)
        if failure and not machine.failure:
            machine = replace(machine, failure=failure, failure_cause=cause)
        if to is Phase.GONE:
            machine = replace(machine, gone_at=now)
        kind = EventKind.FAILURE if failure else EventKind.PHASE
        (log.warning if failure else log.info)(
            "machine_moved", machine=name, phase=to.value, was=old.phase.value, reason=reason
        )
        self._changed()
        return self.journal.put(
            machine, kind, f"{to.value}: {reason}", now, phase=to.value, was=old.phase.value, slot=machine.slot,
            offer=machine.offer.key, refusal=machine.refusal, cause=machine.failure_cause.value,
        )  # fmt: skip

    def change(
        self, name: str, kind: EventKind, text: str, *, origin: Origin = Origin.MESHD, **changes: Any
    ) -> Machine:
        """Change a record without another phase."""
        machine = replace(self.get(name), **changes)
        log.info("machine_changed", machine=name, kind=kind, text=text)
        self._changed()
        return self.journal.put(
            machine, kind, text, self.now(), origin=origin, slot=machine.slot, offer=machine.offer.key
        )

    def node_change(self, name: str, kind: EventKind, text: str, **changes: Any) -> Machine:
        """Change a record as its node says: in memory alone once that machine has caused too many events."""
        if self._may(name):
            return self.change(name, kind, text, origin=Origin.NODE, **changes)
        return self.journal.note(replace(self.get(name), **changes))

    def node_event(self, name: str, kind: EventKind, *texts: str) -> None:
        """Write events that a node causes, together, but for those above what that machine may cause."""
        news = [NewEvent(self.now(), kind, text, name, origin=Origin.NODE) for text in texts if self._may(name)]
        if news:
            self.journal.write_events(news)

    def _may(self, name: str) -> bool:
        may = self.node_events.may(name)
        if text := self.node_events.summary(name):
            log.warning("node_reports_too_much", machine=name, text=text)
            self.journal.event(self.now(), EventKind.FLOOD, text, name, origin=Origin.NODE)
        return may

    # -- what is left alone for a while ---------------------------------------------------------------------------

    def refused(
        self,
        key: CooldownKey,
        base_s: float,
        most_s: float,
        reason: str,
        *,
        cause: CooldownCause = CooldownCause.REFUSED,
    ) -> Cooldown:
        """Leave something alone that said no: longer each time in a row."""
        last = self.journal.last_cooldown(key)
        return self.set_cooldown(
            cooldowns.refused(last, key, self.now(), base_s=base_s, most_s=most_s, reason=reason, cause=cause)
        )

    def paused(self, key: CooldownKey, wait_s: float, reason: str, *, fault: bool) -> Cooldown:
        """Ask something again only in a while; `fault` says that it stumbled."""
        last = self.journal.last_cooldown(key)
        return self.set_cooldown(cooldowns.paused(last, key, self.now(), wait_s=wait_s, reason=reason, fault=fault))

    def set_cooldown(self, cooldown: Cooldown) -> Cooldown:
        """Leave something alone for a while. One that is in force already is not written again."""
        now = self.now()
        if cooldown != self.journal.last_cooldown(cooldown.key):
            for_s = round((cooldown.until - now).total_seconds())
            log.warning("cooldown_set", key=cooldown.key, for_s=for_s, strikes=cooldown.strikes, reason=cooldown.reason)
            self.journal.set_cooldown(cooldown, now)
            self._changed()
        return cooldown

    def proved(self, *keys: CooldownKey, causes: Collection[CooldownCause]) -> None:
        """These did well just now: what was held against them for these causes is forgotten.

        A refusal or pause that is in force stays: it is newer than the order that went well.
        """
        now = self.now()
        held = [
            cooldown
            for key in keys
            if (cooldown := self.journal.last_cooldown(key)) is not None and cooldown.cause in causes
        ]
        over = {cooldown.key for cooldown in held if cooldown.until <= now or cooldown.cause in TRIED_ALONE}
        if over:
            self.journal.lift_cooldowns(over)


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
