"""The snapshot that a plan is made from: what every source said last, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from meshd.daemon.observe.agent_reports import NodeReports
from meshd.daemon.observe.loop_lag import LoopLag
from meshd.daemon.observe.source import sources_of
from meshd.daemon.observe.sources import Sources
from meshd.model.host import Host
from meshd.model.node_settings import WantedSection
from meshd.model.observed import Fresh, Observation, SlurmView, Snapshot, TailnetView, value_of
from meshd.plan.demand import PoweredUp, powered_up
from meshd.plan.hosts import as_machines
from meshd.tailnet.watcher import TailnetWatcher


class Applied(Protocol):
    """What Slurm's files say."""

    @property
    def node_addrs(self) -> Mapping[str, str]:
        """The address of every slot whose joined line Slurm has."""
        ...

    @property
    def settable_addrs(self) -> Mapping[str, str]:
        """The address of every slot whose joined line differs from Slurm's in nothing else that counts."""
        ...


class Wanted(Protocol):
    """What machines are to have of their node settings."""

    def of_arriving(self) -> Mapping[str, Mapping[str, WantedSection]]:
        """The sections of each machine that is being configured."""
        ...


class SnapshotReader:
    """Calling it returns the snapshot of this moment. Reads memory only, and remembers which slots people powered up.

    Args:
        sources: the clouds, Slurm and the auth key's state.
        tailnet: the head's view of the tailnet.
        loop_lag: a head that was late has heard nobody meanwhile.
        applied: what Slurm has of the machines' lines.
        reports: what the node agents said last.
        wanted: the node settings.
        hosts: owned machines.
    """

    def __init__(
        self,
        sources: Sources,
        tailnet: TailnetWatcher,
        loop_lag: LoopLag,
        applied: Applied,
        reports: NodeReports,
        wanted: Wanted,
        hosts: Callable[[], tuple[Host, ...]] = tuple,
    ) -> None:
        self._hosts = hosts
        self._sources = sources
        self._tailnet = tailnet
        self._loop_lag = loop_lag
        self._applied = applied
        self._reports = reports
        self._wanted = wanted
        self._slurm: Observation[SlurmView] | None = None
        self._powered_up = PoweredUp()

    def __call__(self) -> Snapshot:
        """What every source said last."""
        slurm = self._sources.slurm.current
        if slurm is not self._slurm:
            self._slurm, self._powered_up = slurm, powered_up(self._powered_up, value_of(slurm))
        return Snapshot(
            instances=sources_of(self._sources.listings),
            offers=sources_of(self._sources.offers),
            tailnet=self._loop_lag.heard(self._named(self._tailnet.current)),
            slurm=slurm,
            node_addrs=self._applied.node_addrs,
            settable_addrs=self._applied.settable_addrs,
            dead_key=self._sources.dead_key(),
            reports=dict(self._reports.current),
            sections=self._wanted.of_arriving(),
            by_person=self._powered_up.slots,
        )

    def _named(self, seen: Observation[TailnetView]) -> Observation[TailnetView]:
        """The tailnet, with hosts under the names of their machines."""
        return replace(seen, value=as_machines(seen.value, self._hosts())) if isinstance(seen, Fresh) else seen

    async def refresh(self) -> None:
        """Read Slurm and the tailnet now. A source that cannot be read becomes unavailable; nothing is raised."""
        await asyncio.gather(self._sources.slurm.read_once(), self._tailnet.look(), return_exceptions=True)
