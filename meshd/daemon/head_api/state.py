"""What the services of the head API read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from meshd.api.faults import NotReady
from meshd.daemon.head_api import views
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.controller import MachineController, Tick
from meshd.model.desired import Desired
from meshd.model.observed import SlurmView, Snapshot
from meshd.plan.plan_input import ClusterView
from meshd.plan.waiting import WaitingJob
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal


@dataclass(frozen=True, slots=True)
class HeadState:
    """The journal, what is desired, and what the sources and the last tick have.

    Attributes:
        desired: pools, targets, policy and cooldowns, as of now.
        snapshot: the newest reading of every source. Reads memory only.
        waiting: the jobs that wait for machines.
    """

    machine_store: MachineStore
    controller: MachineController
    desired: Callable[[], Desired]
    snapshot: Callable[[], Snapshot]
    clock: Clock
    waiting: Callable[[], tuple[WaitingJob, ...]] = tuple

    @property
    def journal(self) -> Journal:
        """Machines, targets, cooldowns and events."""
        return self.machine_store.journal

    @property
    def revision(self) -> tuple[int, int]:
        """Changes with each tick, and with each change of a machine's record but those of its heartbeats."""
        return self.controller.ticks, self.journal.revision

    def tick(self) -> Tick:
        """The last tick.

        Raises:
            NotReady: there was none yet.
        """
        if self.controller.last is None:
            raise NotReady("meshd has just started and has not read its sources yet", "try again in a second")
        return self.controller.last

    def slurm(self) -> SlurmView | None:
        """Slurm, as the last tick saw it; None before the first tick and while Slurm cannot be read."""
        return views.slurm_of(self.controller.last.snapshot if self.controller.last else None)

    def cluster_view(self, now: datetime) -> ClusterView:
        """What the last tick saw of single nodes; empty before the first one."""
        snapshot = self.controller.last.snapshot if self.controller.last else None
        return views.cluster_view_of(snapshot, self.desired().policy, now)
