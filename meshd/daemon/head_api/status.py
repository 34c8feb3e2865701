"""How the whole is: pools, machines, problems and spending. Reads memory; only slurmctld is pinged."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import Protocol

from meshd import __version__
from meshd.api import schema as s
from meshd.daemon.head_api import views
from meshd.daemon.head_api.state import HeadState
from meshd.daemon.machines import problems as machine_problems
from meshd.daemon.machines.executor import Executor
from meshd.daemon.nodes import health as node_health
from meshd.daemon.nodes import problems as node_problems
from meshd.daemon.observe import problems as source_problems
from meshd.daemon.prices import problems as price_problems
from meshd.daemon.providers import problems as provider_problems
from meshd.daemon.slurm.ping import SlurmPing
from meshd.model.ids import slot_order
from meshd.model.machine import COSTS_MONEY, Machine

_WORST_FIRST = {"error": 0, "warning": 1, "info": 2}


class PublishState(Protocol):
    """How Slurm's files are."""

    def view(self) -> s.PublishView:
        """For `meshctl status`."""
        ...


class StatusService:
    """Answers STATUS, NODES and VERSION.

    Args:
        state: the journal, the sources and the last tick.
        executor: knows which steps fail.
        published: Slurm's files.
        slurm_ping: pings slurmctld when its last reading is old; None: it is not pinged.
        problems_of_others: what shows neither in the journal nor in a tick.
        partitions: the partition of each pool.
        cluster: the cluster's name.
        tailscale_version: of the head; "" when not known.
    """

    def __init__(
        self,
        state: HeadState,
        *,
        executor: Executor,
        published: PublishState,
        slurm_ping: SlurmPing | None,
        problems_of_others: Callable[[], Iterable[s.ProblemView]],
        partitions: Callable[[], dict[str, str]],
        cluster: str,
        tailscale_version: Callable[[], str],
    ) -> None:
        self._state = state
        self._executor = executor
        self._published = published
        self._slurm_ping = slurm_ping
        self._problems_of_others = problems_of_others
        self._partitions = partitions
        self._cluster = cluster
        self._tailscale_version = tailscale_version
        self._started_at = state.clock.now()

    async def status(self) -> s.StatusView:
        """The whole. slurmctld is pinged, because its last reading may be half a minute old."""
        state, tick = self._state, self._state.controller.last
        if self._slurm_ping is not None and tick is not None:
            await self._slurm_ping.ask_if_old(tick.snapshot.slurm)
        now, desired, machines = state.clock.now(), state.desired(), state.journal.machines()
        tick, slurm, cluster_view = state.controller.last, state.slurm(), state.cluster_view(now)
        partitions = self._partitions()
        by_pool: dict[str, list[Machine]] = {}
        for machine in machines:
            by_pool.setdefault(machine.pool, []).append(machine)
        return s.StatusView(
            cluster=self._cluster,
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
            slurm=self._published.view(),
            spend=s.SpendView(
                usd_per_hour=round(sum(m.usd_per_hour for m in machines if m.phase in COSTS_MONEY), 4),
                usd_so_far=views.usd_so_far([*machines, *state.journal.history()], now),
            ),
        )

    def problems(self) -> list[s.ProblemView]:
        """Everything that is not as it should be, worst first."""
        state, tick = self._state, self._state.controller.last
        now, desired, machines = state.clock.now(), state.desired(), state.journal.machines()
        found = [
            *machine_problems.tick(state.controller.problem),
            *machine_problems.machines(machines, self._executor.problems),
            *price_problems.stale(desired, machines),
            *self._problems_of_others(),
        ]
        if tick is not None:
            found += node_health.problems(machines, desired, state.cluster_view(now))
            found += source_problems.sources(tick.snapshot)
            if self._slurm_ping is not None:
                found += self._slurm_ping.problems(tick.snapshot.slurm)
            found += provider_problems.not_enabled(machines, tick.snapshot)
            found += node_problems.logins(machines, tick.snapshot, now)
            found += machine_problems.pools(desired, machines, tick.plan.warnings, tick.snapshot)
        return sorted(found, key=lambda p: (_WORST_FIRST.get(p.severity, 9), p.pool, p.text))

    async def nodes(self) -> s.NodesView:
        """All machines that are not GONE."""
        now, slurm = self._state.clock.now(), self._state.slurm()
        cluster_view = self._state.cluster_view(now)
        machines = sorted(self._state.journal.machines(), key=lambda m: (m.pool, slot_order(m.slot), m.name))
        return s.NodesView(at=now, nodes=[views.node_row(machine, slurm, cluster_view) for machine in machines])

    async def version(self) -> s.VersionView:
        """What runs on the head."""
        slurm = self._state.slurm()
        return s.VersionView(
            meshd=__version__, cluster=self._cluster, python=platform.python_version(),
            slurm=slurm.version if slurm else "", tailscale=self._tailscale_version(),
        )  # fmt: skip
