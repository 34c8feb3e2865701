"""How the whole is: pools, machines, problems and spending. Reads memory; only slurmctld is pinged."""

from __future__ import annotations

import platform
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from meshd import __version__
from meshd.api import schema as s
from meshd.codes import ProblemCode
from meshd.daemon.head_api import views
from meshd.daemon.head_api.state import HeadState
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.slurm_ping import SlurmPing
from meshd.daemon.reporting import Reporter
from meshd.model.ids import slot_order
from meshd.model.machine import COSTS_MONEY, Machine
from meshd.model.observed import SlurmView
from meshd.tailnet.watcher import TailnetWatcher

_WORST_FIRST = {"error": 0, "warning": 1, "info": 2}


class PublishState(Protocol):
    """How Slurm's files are."""

    def view(self) -> s.PublishView:
        """For `meshctl status`."""
        ...


class HeadRow(Protocol):
    """The head as a node."""

    def row(self, view: SlurmView | None) -> s.HeadNodeRow | None:
        """See `daemon.slurm.head_node`."""
        ...


class StatusService:
    """Answers STATUS, NODES and VERSION.

    Args:
        state: the journal, the sources and the last tick.
        live: the settings, for the partitions and the cluster's name.
        slurm_files: how Slurm's files are.
        slurm_ping: pings slurmctld when its last reading is old.
        report: the problems of all parts.
        tailnet: knows tailscaled's version.
        head_node: how the head is as a node.
        usd_so_far: what all machines have ever cost.
    """

    def __init__(
        self,
        state: HeadState,
        live: LiveSettings,
        *,
        slurm_files: PublishState,
        slurm_ping: SlurmPing,
        report: Reporter,
        tailnet: TailnetWatcher,
        head_node: HeadRow,
        usd_so_far: Callable[[datetime], float],
    ) -> None:
        self._state = state
        self._usd_so_far = usd_so_far
        self._live = live
        self._slurm_files = slurm_files
        self._slurm_ping = slurm_ping
        self._report = report
        self._tailnet = tailnet
        self._head_node = head_node
        self._started_at = state.clock.now()

    async def status(self) -> s.StatusView:
        """The whole. slurmctld is pinged, because its last reading may be half a minute old."""
        state, tick = self._state, self._state.controller.last
        if tick is not None:
            await self._slurm_ping.ask_if_old(tick.snapshot.slurm)
        now, desired, machines = state.clock.now(), state.desired(), state.journal.machines()
        tick, slurm, cluster_view = state.controller.last, state.slurm(), state.cluster_view(now)
        settings = self._live.settings
        partitions = {name: pool.partition or name for name, pool in settings.pools.items()}
        by_pool: dict[str, list[Machine]] = {}
        for machine in machines:
            by_pool.setdefault(machine.pool, []).append(machine)
        return s.StatusView(
            cluster=self._live.settings.cluster.name,
            version=__version__,
            at=now,
            uptime_s=round((now - self._started_at).total_seconds(), 1),
            tick_at=tick.at if tick else None,
            tick_age_s=round((now - tick.at).total_seconds(), 3) if tick else None,
            sources=views.sources(tick.snapshot, now, self._slurm_ping) if tick else [],
            pools=[
                views.pool_view(
                    pool, partitions.get(pool.name, pool.name), by_pool.get(pool.name, []), desired, slurm, cluster_view
                )
                for pool in desired.pools.values()
            ],
            problems=self.problems(),
            slurm=self._slurm_files.view(),
            head=self._head_node.row(slurm),
            waiting=[views.waiting_row(job) for job in state.waiting()],
            freeze=views.freeze_view(desired.freeze),
            spend=s.SpendView(
                usd_per_hour=round(sum(m.usd_per_hour for m in machines if m.phase in COSTS_MONEY), 4),
                usd_so_far=round(self._usd_so_far(now), 4),
            ),
        )

    def problems(self) -> list[s.ProblemView]:
        """Everything that is not as it should be, worst first; before all that meshd is frozen."""
        return sorted(
            self._report.problems(), key=lambda p: (not _is_freeze(p), _WORST_FIRST.get(p.severity, 9), p.pool, p.text)
        )

    async def nodes(self) -> s.NodesView:
        """All machines that are not GONE."""
        now, slurm = self._state.clock.now(), self._state.slurm()
        cluster_view = self._state.cluster_view(now)
        machines = sorted(self._state.journal.machines(), key=lambda m: (m.pool, slot_order(m.slot), m.name))
        rows = [views.node_row(machine, slurm, cluster_view) for machine in machines]
        return s.NodesView(at=now, nodes=rows, head=self._head_node.row(slurm))

    async def version(self) -> s.VersionView:
        """What runs on the head."""
        slurm = self._state.slurm()
        return s.VersionView(
            meshd=__version__, cluster=self._live.settings.cluster.name, python=platform.python_version(),
            slurm=slurm.version if slurm else "", tailscale=self._tailnet.table.version if self._tailnet.table else "",
        )  # fmt: skip


def _is_freeze(problem: s.ProblemView) -> bool:
    return problem.code == ProblemCode.FROZEN and not problem.pool
