"""Keeps the addresses of CLOUD nodes in force as they are wanted, whatever changed them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import structlog

from meshd.daemon.observe.source import Readable
from meshd.errors import SlurmError
from meshd.model.observed import Fresh, SlurmView
from meshd.runtime.clock import Clock
from meshd.slurm.apply import Applier
from meshd.slurm.client import SlurmClient
from meshd.slurm.node_addrs import addrs_off, only_addrs, settable_addrs
from meshd.slurm.nodes import Rendered

log = structlog.get_logger(__name__)


class NodeAddrs:
    """Sets addresses by `scontrol update`, without the files.

    Args:
        client: Slurm's commands.
        clock: time.
        slurm: what Slurm said last.
        wait_until_quiet: returns when Slurm may be changed.
    """

    def __init__(
        self,
        client: SlurmClient,
        clock: Clock,
        slurm: Readable[SlurmView],
        wait_until_quiet: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._slurm = slurm
        self._wait_until_quiet = wait_until_quiet
        self._set_at: datetime | None = None
        self._settable_of: tuple[str, str, str] | None = None
        self._settable: Mapping[str, str] = {}
        self._only: frozenset[str] | None = None

    def settable(self, wanted: Rendered | None, applier: Applier) -> Mapping[str, str]:
        """See `Snapshot.settable_addrs`."""
        if wanted is None:
            return {}
        of = (wanted.digest, applier.nodes_conf, applier.gres_conf)
        if of != self._settable_of:
            self._settable = settable_addrs(wanted, applier.nodes_conf, applier.gres_conf)
            self._settable_of, self._only = of, None
        return self._settable

    def only(self, wanted: Rendered, applier: Applier) -> frozenset[str]:
        """See `only_addrs`, which renders the files once more: only a change that waits asks for it."""
        settable = self.settable(wanted, applier)
        if self._only is None:
            self._only = only_addrs(wanted, applier.lines, applier.nodes_conf, applier.gres_conf, settable)
        return self._only

    async def reconcile(self, wanted: Rendered | None, applier: Applier) -> None:
        """Set the addresses that are off. What was set is looked at again once Slurm was read after that."""
        seen = self._slurm.current
        if wanted is None or not isinstance(seen, Fresh) or (self._set_at is not None and seen.at <= self._set_at):
            return
        off = addrs_off(wanted, seen.value, applier.nodes_conf, self.settable(wanted, applier))
        if not off:
            return
        if self._wait_until_quiet is not None:
            await self._wait_until_quiet()
        try:
            await self._client.set_node_addrs(off)
        except SlurmError as error:
            log.warning("slurm_addresses_not_set", slots=sorted(off)[:5], error=str(error))
        self._set_at = self._clock.now()
