"""Events for those who wait for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

from meshd.runtime.clock import Clock
from meshd.store.events import Event, EventFilter
from meshd.store.journal import Journal


class NewEvent:
    """Reads the journal's events and waits for new ones. Build it inside a running event loop."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._came = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        self._telling: set[asyncio.Task[None]] = set()
        journal.on_event(self._tell)

    async def after(
        self, event_id: int | None, limit: int, wait_s: float, wanted: EventFilter
    ) -> tuple[Sequence[Event], int]:
        """The events behind `event_id`, oldest first, and where to go on.

        Args:
            event_id: None for the newest ones, which are not waited for.
            limit: so many at most.
            wait_s: how long to wait when there are none.
            wanted: which ones.
        """
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            newest = self._journal.last_event_id()
            found = self._journal.events_like(wanted, -1 if event_id is None else event_id, limit)
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
