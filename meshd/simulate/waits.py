"""For what jobs wait, pool by pool: PURE but for what it adds up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from meshd.model.plan import Plan
from meshd.plan.slots import SHORT
from meshd.simulate.queue import Job


class Wait(StrEnum):
    """For what a job waits that no refusal of the planner holds back."""

    NODES_TAKEN = "nodes_taken"
    """Other jobs have the nodes, or are before it."""
    BOOT = "boot"
    """It has its nodes, and their machines are not up yet."""
    REQUEUED = "requeued"
    """It lost a node, and Slurm holds it for a while."""


WORDS: Mapping[str, str] = {
    Wait.NODES_TAKEN: "all nodes had other jobs",
    Wait.BOOT: "machines booted",
    Wait.REQUEUED: "held by Slurm after it lost a node",
    **{str(code): short for code, short in SHORT.items()},
}
"""What a code of Wait or of DemandCode says, in a few words."""


@dataclass
class Waits:
    """Adds up how long jobs wait for what.

    Attributes:
        seconds: by pool and code, over all jobs.
        short: by pool, why it cannot have more machines now. A pool that can is missing.
    """

    seconds: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    short: Mapping[str, str] = field(default_factory=dict)

    def hear(self, plan: Plan) -> None:
        """What the planner has just said."""
        self.short = {pool: str(slots.code) for pool, slots in plan.open_slots.items() if slots.code is not None}

    def add(self, jobs: Iterable[Job], now_s: float, delay_s: float) -> None:
        """For `delay_s` from now on, nothing changes for these jobs."""
        for job in jobs:
            if job.ends_s is None:
                self.seconds[job.partition, self._code(job, now_s)] += delay_s

    def _code(self, job: Job, now_s: float) -> str:
        if job.slots:
            return Wait.BOOT
        if code := self.short.get(job.partition):
            return code
        return Wait.REQUEUED if job.begin_s > now_s else Wait.NODES_TAKEN
