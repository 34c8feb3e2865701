"""Tells systemd that the daemon makes progress, and how it stands."""

from __future__ import annotations

from collections.abc import Callable

from meshd.daemon.controller import Controller
from meshd.daemon.head_api.service import HeadService
from meshd.daemon.head_api.views import cluster_view_of, status_line
from meshd.daemon.machines.controller import MachineController, Tick
from meshd.daemon.notify import Notifier
from meshd.model.desired import Desired
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal

EVERY_S = 1.0


class ServiceStatus(Controller):
    """Feeds systemd's watchdog while ticks go on, and writes the line of `systemctl status`.

    Args:
        notifier: speaks to systemd.
        machines: ticks.
        journal: the machines.
        desired: what is desired now.
        head: knows all problems.
        clock: time.
    """

    name = "service_status"

    def __init__(
        self,
        notifier: Notifier,
        machines: MachineController,
        journal: Journal,
        desired: Callable[[], Desired],
        head: HeadService,
        clock: Clock,
    ) -> None:
        super().__init__(clock)
        self._notifier = notifier
        self._machines = machines
        self._journal = journal
        self._desired = desired
        self._head = head
        self._seen: Tick | None = None

    async def reconcile(self) -> float:
        """Feed it, unless no tick was made since."""
        tick = self._machines.last
        if tick is not None and tick is not self._seen:
            self._seen = tick
            self._notifier.watchdog()
            cluster_view = cluster_view_of(tick.snapshot, self._desired().policy, self._clock.now())
            self._notifier.status(status_line(self._journal.machines(), self._head.problems(), cluster_view))
        return EVERY_S
