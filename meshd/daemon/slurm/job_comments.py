"""Writes into the AdminComment of each job that waits for machines what it waits for, and until when.

Users see it with `squeue -O admin_comment` and `scontrol show job`. A comment that is not meshd's stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from meshd.daemon.controller import Controller
from meshd.daemon.observe.source import Observed
from meshd.errors import SlurmError
from meshd.model.observed import SlurmView, value_of
from meshd.plan.waiting import WaitingJob, comments
from meshd.runtime.clock import Clock

log = structlog.get_logger(__name__)

LOOK_S = 5.0
AT_ONCE = 20
"""The most jobs that are written to in one pass: each is a command."""


class Slurm(Protocol):
    """What is asked of Slurm."""

    async def update_job(
        self, job: str, *, wait_s: float | None = None, admin_comment: str | None = None, requeue: bool | None = None
    ) -> None:
        """Change a job. Raises SlurmError."""
        ...


class JobComments(Controller):
    """Brings the comments to what is true now.

    Args:
        slurm: Slurm's commands.
        clock: time.
        seen: what Slurm said last.
        waiting: the jobs that wait.
    """

    name = "job_comments"

    def __init__(
        self, slurm: Slurm, clock: Clock, seen: Observed[SlurmView], waiting: Callable[[], Sequence[WaitingJob]]
    ) -> None:
        super().__init__(clock)
        self._slurm = slurm
        self._seen = seen
        self._waiting = waiting

    async def reconcile(self) -> float:
        """Make one pass. A job whose comment cannot be written has ended, or is tried again in the next pass."""
        view = value_of(self._seen.current)
        if view is None:
            return LOOK_S
        for job, comment in list(comments(self._waiting(), view).items())[:AT_ONCE]:
            try:
                await self._slurm.update_job(job, admin_comment=comment)
            except SlurmError as error:
                log.info("job_comment_not_written", job=job, reason=str(error))
        return LOOK_S
