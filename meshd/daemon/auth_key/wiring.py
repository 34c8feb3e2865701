"""Builds the parts that look after auth keys."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta

from meshd.config import Settings
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.agents import Asks
from meshd.daemon.auth_key.checks import DeviceChecks
from meshd.daemon.auth_key.controller import AuthKeyController
from meshd.daemon.auth_key.fleet import Fleet
from meshd.daemon.auth_key.handshakes import HandshakePrimer
from meshd.daemon.auth_key.machine_keys import MachineKeys
from meshd.daemon.auth_key.ports import KeyPorts
from meshd.daemon.auth_key.service import AuthKeyService
from meshd.daemon.auth_key.spare_keys import SpareKeys
from meshd.daemon.auth_key.steps import Prover, StepContext
from meshd.daemon.auth_key.triggers import RotationTriggers
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.observe.source import Readable
from meshd.model.observed import SlurmView
from meshd.runtime.clock import Clock
from meshd.store.auth_rotations import AuthRotations
from meshd.store.machine_keys import OpenKeys
from meshd.tailnet.admin import AuthKey
from meshd.tailnet.link import TailnetLink


@dataclass(frozen=True, slots=True)
class AuthKeyParts:
    """What the rest of the daemon uses."""

    controller: AuthKeyController
    machine_keys: MachineKeys
    spares: SpareKeys
    service: AuthKeyService
    open_keys: OpenKeys


def build(
    settings: Settings,
    ports: KeyPorts,
    machine_store: MachineStore,
    rotations: AuthRotations,
    active: ActiveRotations,
    agents: Asks,
    prover: Prover,
    tailnet: TailnetLink,
    slurm: Readable[SlurmView],
    key_record: Readable[AuthKey | None],
    clock: Clock,
    invited: Callable[[], Collection[str]] = tuple,
) -> AuthKeyParts:
    """Build the parts. `invited`: see MachineKeys. Raises StoreError when the journal cannot be read."""
    cluster, ahead = settings.cluster.name, timedelta(days=settings.tailnet.rotate_before_expiry_d)
    journal, open_keys = machine_store.journal, OpenKeys(machine_store.journal)
    fleet = Fleet(journal, open_keys, ports.store, tailnet, slurm, clock, settings.node_api.poll_hold_s)
    machine_keys = MachineKeys(open_keys, ports, rotations, machine_store, fleet, clock, invited)
    spares = SpareKeys(machine_keys, agents, machine_store, open_keys, rotations, fleet, clock)
    context = StepContext(cluster, ports, prover, agents, machine_store, fleet, machine_keys, spares)
    triggers, primer = RotationTriggers(ports, key_record, ahead, clock), HandshakePrimer(tailnet, agents, clock)
    checks = DeviceChecks(cluster, ports, fleet, machine_keys, spares, ahead, clock)
    controller = AuthKeyController(rotations, active, context, triggers, primer, checks, clock)
    service = AuthKeyService(controller, ports, fleet, active, clock)
    return AuthKeyParts(controller, machine_keys, spares, service, open_keys)
