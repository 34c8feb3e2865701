"""Whether slurmctld answers, asked at the moment when somebody wants to know.

Slurm's nodes and jobs are read every some seconds, and a query to a slurmctld that is down may take ten seconds to fail
(Slurm's MessageTimeout); `scontrol ping` tells in a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import datetime

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.reporting import problem
from meshd.errors import SlurmError
from meshd.model.observed import Fresh, Observation, SlurmView
from meshd.runtime.clock import Clock
from meshd.runtime.singleflight import SingleFlight

SPACING_S = 2.0
WAIT_S = 3.0
DOWN = "slurmctld does not answer (scontrol ping)"
CURE = "check `scontrol ping` and `systemctl status slurmctld`; jobs go on, and no node leaves meanwhile"


class SlurmPing:
    """Asks, but not twice at once, and not again within SPACING_S.

    Args:
        ping: whether slurmctld answers; raises SlurmError when that cannot be told.
        down: called each time that it does not.
        clock: time.
    """

    def __init__(self, ping: Callable[[], Awaitable[bool]], down: Callable[[], None], clock: Clock) -> None:
        self._ping = ping
        self._down = down
        self._clock = clock
        self._flight: SingleFlight[bool | None] = SingleFlight(self._ask, SPACING_S, clock)
        self._since: datetime | None = None
        self._last_down: datetime | None = None

    async def __call__(self) -> bool | None:
        """Whether it answers; None when that cannot be told within WAIT_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                return await self._flight()
        return None

    async def ask_if_old(self, seen: Observation[SlurmView]) -> None:
        """Ask, unless its last word is of this moment, or it is known that it cannot be read."""
        if isinstance(seen, Fresh) and (self._clock.now() - seen.at).total_seconds() > SPACING_S:
            await self()

    def is_down(self, seen: Observation[SlurmView]) -> bool:
        """It did not answer when it was asked last, and has not been read since."""
        return self._last_down is not None and not (isinstance(seen, Fresh) and seen.at > self._last_down)

    def problems(self, seen: Observation[SlurmView]) -> Iterable[ProblemView]:
        """That it does not answer, until its source says so itself, or that it does."""
        if self.is_down(seen) and isinstance(seen, Fresh):
            return [problem(ProblemCode.SLURMCTLD_DOWN, "error", DOWN, CURE, since=self._since)]
        return []

    async def _ask(self) -> bool | None:
        at = self._clock.now()
        try:
            answers = await self._ping()
        except SlurmError:
            return None
        if answers:
            self._since = self._last_down = None
        else:
            self._since, self._last_down = self._since or at, at
            self._down()
        return answers
