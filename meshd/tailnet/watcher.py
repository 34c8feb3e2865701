"""Keeps a current view of the tailnet: by tailscaled's bus, and by a slow poll in case the bus is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, Protocol

import structlog

from meshd.errors import TailnetError
from meshd.model.observed import Fresh, Observation, TailnetView, Unavailable
from meshd.runtime.backoff import backoff_s
from meshd.runtime.clock import Clock
from meshd.tailnet.deltas import Delta, apply
from meshd.tailnet.status import TailnetTable

RECONNECT_MIN_S: Final = 0.1
RECONNECT_MAX_S: Final = 2.0
POLL_TRIES: Final = 3

log = structlog.get_logger(__name__)


class TailnetSource(Protocol):
    """What is watched: LocalApi, or a stand-in that behaves like it."""

    async def status(self) -> TailnetTable:
        """The tailnet now. Raises TailnetError."""
        ...

    def watch(self) -> AsyncGenerator[Delta, None]:
        """The bus. Raises TailnetError."""
        ...


class TailnetWatcher:
    """A current view of the tailnet.

    Listeners are called after each change, at once. After the bus was closed it is opened again, and the whole status
    is read again. The view becomes Unavailable only when tailscaled does not answer, not when the bus drops.

    Args:
        source: tailscaled.
        clock: stamps and waits.
        poll_interval_s: how often the whole status is read even though the bus is quiet (only a status has the paths).
    """

    def __init__(self, source: TailnetSource, clock: Clock, *, poll_interval_s: float = 30.0) -> None:
        self._source = source
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._poll_interval_s = poll_interval_s
        self._table: TailnetTable | None = None
        self._generation = 0
        self._current: Observation[TailnetView] = Unavailable("tailscaled was not asked yet", clock.now())

    @property
    def current(self) -> Observation[TailnetView]:
        """The newest view, or since when and why there is none."""
        return self._current

    @property
    def head_tailnet_ip(self) -> str:
        """The head's own address, by the newest view; "" when there is none."""
        return self._current.value.self_tailnet_ip if isinstance(self._current, Fresh) else ""

    @property
    def magic_dns_suffix(self) -> str:
        """What the names of this tailnet's devices end with; "" while it is not known."""
        return self._table.magic_dns_suffix if self._table is not None else ""

    @property
    def head_name(self) -> str:
        """The head's whole name on the tailnet; "" while it is not known, or has none."""
        return self._table.self_name if self._table is not None else ""

    @property
    def table(self) -> TailnetTable | None:
        """The newest table, also when it is out of date: for `doctor`, not for decisions."""
        return self._table

    def on_change(self, *listeners: Callable[[], None]) -> None:
        """Call them after each change, from the event loop; they must return at once."""
        self._listeners += listeners

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_for_ever(), name="tailnet-bus")
            group.create_task(self._poll_for_ever(), name="tailnet-poll")

    async def look(self) -> None:
        """Read the whole status now."""
        await self._poll()

    async def _follow_for_ever(self) -> None:
        failures = 0
        while True:
            failures += 1
            try:
                if await self._follow():
                    failures = 1
                log.info("tailnet_bus_closed")
            except TailnetError as error:
                log.warning("tailnet_bus_lost", reason=str(error))
            if await self._resync():
                failures = 1
            await self._clock.sleep(backoff_s(failures, RECONNECT_MIN_S, RECONNECT_MAX_S))

    async def _follow(self) -> bool:
        """Follow one connection to its end. Returns whether it sent anything."""
        first = True
        async with aclosing(self._source.watch()) as bus:
            async for delta in bus:
                await self._take(delta, first=first)
                first = False
        return not first

    async def _take(self, delta: Delta, *, first: bool) -> None:
        before = delta.status or (None if first or isinstance(self._current, Unavailable) else self._table)
        if before is None:
            await self._resync()
            return
        if delta.empty:
            return
        table, resync = apply(before, delta)
        self._publish(table)
        if resync:
            await self._resync()

    async def _resync(self) -> bool:
        """Read the whole status; False and Unavailable when that fails."""
        try:
            self._publish(await self._source.status())
        except TailnetError as error:
            self._lost(str(error))
            return False
        return True

    async def _poll_for_ever(self) -> None:
        while True:
            known = isinstance(self._current, Fresh)
            await self._clock.sleep(self._poll_interval_s if known else min(RECONNECT_MAX_S, self._poll_interval_s))
            await self._poll()

    async def _poll(self) -> None:
        """Read the whole status. Read it again when a delta came in between, which may be newer."""
        for _ in range(POLL_TRIES):
            generation = self._generation
            try:
                table = await self._source.status()
            except TailnetError as error:
                self._lost(str(error))
                return
            if generation == self._generation:
                self._publish(table)
                return

    def _publish(self, table: TailnetTable) -> None:
        self._generation += 1
        before = self._current
        view = table.view()
        self._table = table
        now = self._clock.now()
        since = now
        if isinstance(before, Fresh) and before.value.healthy and view.healthy:
            since = min(before.since or now, now)
        self._current = Fresh(view, now, since)
        if isinstance(before, Unavailable):
            log.info("tailnet_seen", peers=len(view.peers), healthy=view.healthy)
        elif before.value == view:
            return
        elif before.value.healthy != view.healthy:
            log.warning("tailnet_health_changed", healthy=view.healthy, problems=view.problems)
        self._tell()

    def _lost(self, reason: str) -> None:
        self._generation += 1
        before = self._current
        if isinstance(before, Unavailable):
            self._current = Unavailable(reason, before.since)
            return
        self._current = Unavailable(reason, self._clock.now())
        log.warning("tailnet_unavailable", reason=reason)
        self._tell()
