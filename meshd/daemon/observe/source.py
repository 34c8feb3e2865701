"""Reads the clouds and Slurm, each at its own pace, and keeps what each said last.

Nothing here decides. A source that fails becomes Unavailable and keeps the time since when; it is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import structlog

from meshd.errors import MeshdError
from meshd.model.observed import Fresh, Observation, Unavailable
from meshd.runtime.clock import Clock, sleep_until

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
log = structlog.get_logger(__name__)

RETRY_S = 10.0
REST_MAX_S = 1.0
"""After a reading it rests as long as that took, and this long at most: it never takes more than half of a core."""
REFRESH_SPACING_S = 10.0
"""A round of reading that was asked for less long ago will do."""


class Observed(Protocol[T_co]):
    """Something that is watched or read again and again."""

    @property
    def current(self) -> Observation[T_co]:
        """What it said last."""
        ...


class Readable(Observed[T_co], Protocol[T_co]):
    """What a Source offers to those who use what it read."""

    async def read_once(self) -> object:
        """Read now. A failure shows in `current`."""
        ...


class Source(Generic[T]):
    """One thing that is read again and again.

    Args:
        name: for status and logs, e.g. "provider:aws".
        read: reads it once; raises a leaf of MeshdError.
        timeout_s: after this the read counts as failed; None: it has a deadline of its own.
        interval_s: seconds to wait between two reads, asked before each: short while a machine waits for a change.
        changed: called after each read.
        spacing_s: the least seconds between two reads, however much somebody hurries: what is asked for in the
            meantime is one read.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Awaitable[T]],
        clock: Clock,
        *,
        interval_s: Callable[[], float],
        changed: Callable[[], None],
        timeout_s: float | None = None,
        spacing_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.name = name
        self._read = read
        self._clock = clock
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._changed = changed
        self._spacing_s = spacing_s
        self._hurried = False
        self._woken = asyncio.Event()
        self.current: Observation[T] = Unavailable("not read yet", clock.now())

    def hurry(self) -> None:
        """Read again now rather than later."""
        self._hurried = True
        self._woken.set()

    def reconsider(self) -> None:
        """Look again how long to wait: the interval may have shrunk, since somebody began to wait for news."""
        self._woken.set()

    async def read_once(self) -> Observation[T]:
        """Read now; the value is stamped with the time at which the reading began."""
        at = self._clock.now()
        try:
            async with asyncio.timeout(self._timeout_s):
                value = await self._read()
        except (MeshdError, TimeoutError) as error:
            self._failed(str(error) or _no_answer(self._timeout_s), at, getattr(error, "kind", ""))
        except Exception as error:
            # A fault of our own must not leave an old word standing as if it were of now; the task guard tells it.
            self._failed(f"a fault inside meshd: {type(error).__name__}", at)
            self._changed()
            raise
        else:
            if isinstance(self.current, Unavailable):
                log.info("source_available", source=self.name)
            since = self.current.since if isinstance(self.current, Fresh) and self.current.since else at
            self.current = Fresh(value, at, min(since, at))
        self._changed()
        return self.current

    def _failed(self, reason: str, at: datetime, kind: str = "") -> None:
        since = self.current.since if isinstance(self.current, Unavailable) else at
        if isinstance(self.current, Fresh) or self.current.reason != reason:
            log.warning("source_unavailable", source=self.name, reason=reason)
        self.current = Unavailable(reason, since, kind)

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            self._hurried = False  # before the read: who hurries while it goes on wants a newer one
            began_s = self._clock.monotonic_s()
            await self.read_once()
            read_s = self._clock.monotonic_s()
            rested_s = read_s + min(read_s - began_s, REST_MAX_S)
            await self._clock.sleep(self._spacing_s())
            while (
                not self._hurried and (left_s := max(read_s + self._wait_s(), rested_s) - self._clock.monotonic_s()) > 0
            ):
                self._woken.clear()
                await sleep_until(self._woken, left_s, self._clock)

    def _wait_s(self) -> float:
        """A source that failed is not left alone for long, however slow its usual pace."""
        interval_s = self._interval_s()
        return min(interval_s, RETRY_S) if isinstance(self.current, Unavailable) else interval_s


def _no_answer(timeout_s: float | None) -> str:
    return "no answer in time" if timeout_s is None else f"no answer within {timeout_s:g} s"


class Refresh:
    """Reads several sources on request: one round at a time, and not too often.

    Args:
        sources: what is read.
        timeout_s: nobody waits longer; the round goes on, and its word is there for the next one who asks.
    """

    def __init__(self, sources: Iterable[Source[Any]], clock: Clock, *, timeout_s: float = 20.0) -> None:
        self._sources = list(sources)
        self._clock = clock
        self._timeout_s = timeout_s
        self._began_s = 0.0
        self._round: asyncio.Future[list[Any]] | None = None

    async def __call__(self) -> None:
        """Read, and return when all is read or time is up. A source that fails says so itself."""
        now_s = self._clock.monotonic_s()
        if self._round is None or (self._round.done() and now_s - self._began_s >= REFRESH_SPACING_S):
            self._began_s = now_s
            self._round = asyncio.gather(*(source.read_once() for source in self._sources), return_exceptions=True)
        await asyncio.wait({self._round}, timeout=self._timeout_s)


def sources_of(table: Mapping[str, Source[T]]) -> dict[str, Observation[T]]:
    """What each source said last."""
    return {name: source.current for name, source in table.items()}
