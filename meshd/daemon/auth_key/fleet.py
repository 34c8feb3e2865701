"""The machines and their devices, as the head knows them now."""

from __future__ import annotations

from datetime import datetime

from meshd.daemon.observe.source import Readable
from meshd.model.machine import Machine
from meshd.model.observed import SlurmView, TailnetView, value_of
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.store.machine_keys import OpenKeys
from meshd.tailnet import spare_keys
from meshd.tailnet.keystore import KeyStore
from meshd.tailnet.link import TailnetLink
from meshd.tailnet.rotation_fleet import AuthKeyFleet, device_tags, fleet_of, reachable

SILENT_POLLS = 2.5
"""An agent cannot be reached when it has not polled for as long as this many polls may take."""


class Fleet:
    """Puts together what the journal, the tailnet and Slurm say.

    Args:
        journal: the machines.
        open_keys: the journal's records of keys for one machine each.
        store: has the key that new machines get.
        tailnet: the head's view of the devices.
        slurm: the source of Slurm's nodes and jobs.
        clock: time.
        poll_hold_s: how long a poll may take.
    """

    def __init__(
        self,
        journal: Journal,
        open_keys: OpenKeys,
        store: KeyStore,
        tailnet: TailnetLink,
        slurm: Readable[SlurmView],
        clock: Clock,
        poll_hold_s: float,
    ) -> None:
        self.journal = journal
        self._open_keys = open_keys
        self._store = store
        self.tailnet = tailnet
        self._slurm = slurm
        self._clock = clock
        self._silent_s = SILENT_POLLS * poll_hold_s

    def now(self) -> AuthKeyFleet:
        """The machines as a rotation sees them. Raises TailnetError when the key in use cannot be read."""
        in_use = self._store.in_use()
        return fleet_of(
            self.journal.machines(), self.tailnet.current, self._slurm.current, in_use=in_use.sha256 if in_use else "",
            now=self._clock.now(), silent_s=self._silent_s, spare_at=self._spare_at,
        )  # fmt: skip

    def reachable(self, machine: Machine) -> bool:
        """Its agent has joined, and polls."""
        return reachable(machine, self._clock.now(), self._silent_s)

    def view(self) -> TailnetView | None:
        """The tailnet; None when it cannot be read."""
        return value_of(self.tailnet.current)

    def head_address(self) -> str:
        """The head's address on the tailnet; "" when it is not known."""
        view = self.view()
        return view.self_tailnet_ip if view is not None else ""

    def device_tags(self) -> tuple[str, ...]:
        """The tags that the machines' devices have; () when there is none or they differ."""
        return device_tags(self.journal.machines(), self.tailnet.current)

    def _spare_at(self, machine: Machine) -> datetime | None:
        return spare_keys.held_since(machine, self._open_keys.spares_of(machine.name))
