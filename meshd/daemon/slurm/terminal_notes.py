"""Tells people who wait at a terminal (srun, salloc) what for, and until when: `scontrol notify`.

Slurm shows such a message on srun's or salloc's stderr, also while the job waits. Batch jobs get none: nobody reads
their output yet, and their AdminComment has the same sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from meshd.daemon.controller import Controller
from meshd.errors import MeshdError
from meshd.plan.waiting import Wait, WaitingJob
from meshd.runtime.clock import Clock

log = structlog.get_logger(__name__)

LOOK_S = 2.0
SPACING_S = 15.0
"""The least time between two messages for one job."""
AT_ONCE_MAX = 50
"""Messages in one pass: each is a command. What is left is told in the next one."""


class Notifies(Protocol):
    """Slurm's message to who waits."""

    async def tell(self, job: str, message: str) -> None:
        """See SlurmClient."""
        ...


class TerminalNotes(Controller):
    """Tells each once, and again when something has changed.

    Args:
        waiting: the jobs that wait for machines now.
        slurm: sends the message.
        clock: time.
    """

    name = "terminal_notes"

    def __init__(self, waiting: Callable[[], Iterable[WaitingJob]], slurm: Notifies, clock: Clock) -> None:
        super().__init__(clock)
        self._waiting, self._slurm = waiting, slurm
        self._told: dict[str, tuple[str, float]] = {}

    async def reconcile(self) -> float:
        """Tell what is new. Raises StoreError where the journal cannot be read."""
        # A job whose machines are all READY starts in a moment.
        jobs = {one.job: one.comment for one in self._waiting() if not one.batch and one.wait is not Wait.START}
        self._told = {job: told for job, told in self._told.items() if job in jobs}
        now_s, sent = self._clock.monotonic_s(), 0
        for job, text in jobs.items():
            before, at_s = self._told.get(job, ("", float("-inf")))
            if text == before or now_s - at_s < SPACING_S or sent >= AT_ONCE_MAX:
                continue
            self._told[job] = text, now_s
            sent += 1
            try:
                await self._slurm.tell(job, text)
            except MeshdError as error:
                # The job has ended meanwhile, or its terminal is gone: nobody waits for the message.
                log.debug("terminal_not_told", job=job, reason=str(error))
        return LOOK_S
