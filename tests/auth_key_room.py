"""The daemon's parts for auth keys, built as the daemon builds them, around ports of a test."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from meshd.config import ClusterSettings, Settings
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.agents import Asks
from meshd.daemon.auth_key.ports import KeyPorts
from meshd.daemon.auth_key.wiring import build
from meshd.daemon.machine_store import MachineStore
from meshd.model.observed import Observation, SlurmView, TailnetView, Unavailable
from meshd.runtime.clock import Clock
from meshd.store.auth_rotations import AuthRotations
from meshd.store.journal import Journal
from meshd.store.munge_rotations import MungeRotations
from meshd.tailnet.admin import AuthKey
from meshd.tailnet.keys import AuthKeys, KeyFile, Minter
from meshd.tailnet.keystore import KeyStore
from meshd.tailnet.link import TailnetLink
from meshd.tailnet.machine_keys import KeyMode, modes_of
from tests.sources import Given, fresh
from tests.unit.worlds import NOW

TAGS = ("tag:gpu",)
NOT_READ = Unavailable("not read", NOW)


class NoTailnet:
    """A tailscaled that does not answer."""

    current: Observation[TailnetView] = NOT_READ

    async def look(self) -> None:
        """Nothing to see."""

    async def prime_session(self, ip: str) -> None:
        raise AssertionError("nobody logs in anew here")


def key_ports(
    directory: Path, api: Any, clock: Clock, *, tags: tuple[str, ...] = TAGS, shared: bool = True, can_mint: bool = True
) -> KeyPorts:
    """The ports around an API of a test: `shared` machines join with one reusable key, which the file may replace."""
    minter = Minter(api, tags=tags, cluster="lab", clock=clock) if can_mint else None
    store, file = KeyStore(directory), KeyFile(directory / "file")
    mode = KeyMode.REUSABLE if shared else KeyMode.PER_MACHINE
    modes = modes_of(mode, {"aws": False}, can_mint=can_mint)
    keys = AuthKeys(store, file, None, clock)
    return KeyPorts(api if can_mint else None, minter, store, file, keys, modes, mints=False, tags=tags)


class Room:
    """One life of the daemon as far as auth keys go.

    Args:
        directory: keeps the journal and the keys from one life to the next.
        ports: see `key_ports`.
        agents: the machines' agents.
        clock: time.
        tailnet: the head's tailscaled; None: it does not answer.
        slurm: None: it cannot be read.
        prover: proves new keys; None: none is proved.
        invited: the owners of keys in open invitations.
    """

    def __init__(
        self,
        directory: Path,
        ports: KeyPorts,
        agents: Asks,
        clock: Clock,
        *,
        tailnet: TailnetLink | None = None,
        slurm: Given[SlurmView] | None = None,
        prover: Any = None,
        invited: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.journal = Journal(directory / "j.db")
        self.machine_store = MachineStore(self.journal, clock, lambda: None)
        self.ports, self.store = ports, ports.store
        self.rotations, self.munge_rotations = AuthRotations(self.journal), MungeRotations(self.journal)
        self.active = ActiveRotations(self.rotations, self.munge_rotations)
        nothing: Given[SlurmView] = Given(lambda: NOT_READ)
        no_record: Given[AuthKey | None] = fresh(lambda: None)
        parts = build(
            Settings(cluster=ClusterSettings(name="lab", state_dir=directory)), ports, self.machine_store,
            self.rotations, self.active, agents, prover, tailnet or NoTailnet(), slurm or nothing, no_record, clock,
            invited,
        )  # fmt: skip
        self.controller, self.service = parts.controller, parts.service
        self.machine_keys, self.spares = parts.machine_keys, parts.spares
