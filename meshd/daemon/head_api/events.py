"""Events for those who ask, and for those who wait for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial

from meshd.api import schema as s
from meshd.api.faults import Unknown
from meshd.codes import EventKind, RefusalCode
from meshd.daemon.head_api import views
from meshd.daemon.head_api.machines import MachineService
from meshd.daemon.head_api.state import HeadState
from meshd.runtime.clock import Clock
from meshd.store.events import Event, EventFilter
from meshd.store.journal import Journal

KINDS = frozenset(EventKind)
"""Kinds that may be asked for before there is an event of them; others are known once one is in the journal."""


class EventService:
    """Answers EVENTS.

    Args:
        state: the journal and the pools.
        machines: knows the names of machines and slots.
    """

    def __init__(self, state: HeadState, machines: MachineService) -> None:
        self._state = state
        self._machines = machines
        self._feed = EventFeed(state.journal, state.clock)

    async def events(self, query: s.EventsQuery) -> s.EventsView:
        """The events that match. With none, it waits for one."""
        matching = self._filter(query)
        found, last_id = await self._feed.after(query.after_id, query.limit, query.wait_s, matching)
        rows = [views.event_row(event, self._state.journal.machine(event.machine)) for event in found]
        return s.EventsView(events=rows, last_id=last_id)

    def _filter(self, query: s.EventsQuery) -> EventFilter:
        """What the query matches. Names that do not exist are refused: otherwise the answer would just be empty.

        Raises:
            Unknown: there is no such machine, slot, pool or kind; its cure has similar names.
            Refused: a slot never had a machine.
        """
        journal, pools = self._state.journal, self._state.desired().pools
        names = tuple(self._machines.name_of(name, also_gone=True) for name in query.machine)
        if query.pool and query.pool not in pools and not journal.machines_of_pool(query.pool, 1):
            raise _unknown(RefusalCode.NO_SUCH_POOL, "pool", query.pool, list(pools))
        kinds = sorted(KINDS | journal.event_kinds()) if query.kind else []
        for kind in query.kind:
            if kind not in kinds:
                raise _unknown(RefusalCode.NO_SUCH_KIND, "kind of event", kind, kinds)
        return EventFilter(machines=names, kinds=query.kind, pool=query.pool, since=query.since)


def _unknown(code: RefusalCode, what: str, name: str, known: list[str]) -> Unknown:
    near = get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known) or 'none'}"
    return Unknown(f"there is no {what} {name}", hint, code=code)


class EventFeed:
    """Reads the journal's events and waits for new ones. Build it inside a running event loop."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._came = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        self._telling: set[asyncio.Task[None]] = set()
        journal.on_event(self._tell)

    async def after(
        self, event_id: int | None, limit: int, wait_s: float, matching: EventFilter
    ) -> tuple[Sequence[Event], int]:
        """The events after `event_id`, oldest first, and the id to go on from.

        Args:
            event_id: None for the newest ones, which are not waited for.
            limit: how many at most.
            wait_s: how long to wait when there are none.
            matching: which ones.
        """
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            newest = self._journal.last_event_id()
            found = self._journal.events_like(matching, -1 if event_id is None else event_id, limit)
            left_s = deadline_s - self._clock.monotonic_s()
            if found or event_id is None or left_s <= 0:
                return found, found[-1].id if found else max(event_id or 0, self._journal.last_event_id())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s), self._came:
                    # One that came while the lock was waited for is not waited for again.
                    await self._came.wait_for(partial(self._newer_than, newest))

    def _newer_than(self, event_id: int) -> bool:
        return self._journal.last_event_id() > event_id

    def _tell(self) -> None:
        task = self._loop.create_task(self._notify_all())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _notify_all(self) -> None:
        async with self._came:
            self._came.notify_all()
