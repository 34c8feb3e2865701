"""What every controller of the daemon offers: reconcile, problems, checks, wake."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from meshd.daemon.reporting import Reporter
from meshd.runtime.clock import Clock, sleep_until


class Wakes(Protocol):
    """Somebody who may be woken."""

    def wake(self) -> None:
        """Look again."""
        ...


class Controller(Reporter, ABC):
    """Brings one thing from what it is to what it should be, pass by pass.

    It is level-triggered: `wake` and the timer only start the next pass, which looks at everything again. What a pass
    needs to know is in the journal or is read by it, so a lost or doubled wake changes nothing.

    Args:
        clock: time.
        awake: what `wake` sets; its own when none is given.

    Attributes:
        name: for logs and for the task that runs it.
    """

    name: ClassVar[str]

    def __init__(self, clock: Clock, awake: asyncio.Event | None = None) -> None:
        self._clock = clock
        self._awake = awake or asyncio.Event()

    @abstractmethod
    async def reconcile(self) -> float | None:
        """Make one pass: look, decide, act.

        Returns:
            Seconds until the next pass, at the latest; None: only when something wakes it.

        Raises:
            MeshdError: the pass failed. The next one begins after a pause that grows with each failure.
        """

    def wake(self) -> None:
        """Start the next pass now."""
        self._awake.set()

    async def run(self) -> None:
        """Make passes until cancelled, then end what is under way."""
        try:
            while True:
                # Before the pass: who wakes the controller while it goes on wants another one.
                self._awake.clear()
                due_s = await self.reconcile()
                if due_s is None:
                    await self._awake.wait()
                else:
                    await sleep_until(self._awake, due_s, self._clock)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End what is under way. The journal knows what was not finished."""
