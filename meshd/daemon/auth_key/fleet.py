"""The machines that may hold an auth key, as the head knows them now."""

from __future__ import annotations

from meshd.daemon.auth_key.spare_keys import SpareKeys
from meshd.daemon.observe.source import Readable
from meshd.model.observed import SlurmView
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.tailnet.keystore import KeyStore
from meshd.tailnet.link import TailnetLink
from meshd.tailnet.rotation_fleet import AuthKeyFleet, fleet_of


class Fleet:
    """Puts together what journal, tailnet and Slurm say.

    Args:
        journal: has the machines.
        tailnet: the head's view of their devices.
        slurm: the source of Slurm's nodes and jobs.
        store: has the key that launches get.
        spares: tells which machine holds a spare key.
        clock: time.
        silent_s: an agent that has not spoken for this long cannot be reached.
    """

    def __init__(
        self,
        journal: Journal,
        tailnet: TailnetLink,
        slurm: Readable[SlurmView],
        store: KeyStore,
        spares: SpareKeys,
        clock: Clock,
        silent_s: float,
    ) -> None:
        self._journal = journal
        self._tailnet = tailnet
        self._slurm = slurm
        self._store = store
        self._spares = spares
        self._clock = clock
        self._silent_s = silent_s

    def now(self) -> AuthKeyFleet:
        """The fleet as a rotation sees it. Raises TailnetError when the key in use cannot be read."""
        in_use = self._store.in_use()
        return fleet_of(
            self._journal.machines(), self._tailnet.current, self._slurm.current,
            in_use=in_use.sha256 if in_use else "", now=self._clock.now(), silent_s=self._silent_s,
            spare_at=self._spares.held_since,
        )  # fmt: skip
