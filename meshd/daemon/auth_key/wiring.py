"""Builds the parts that look after auth keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from meshd.config import Settings
from meshd.daemon.active_rotation import ActiveRotations
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
from meshd.daemon.machines.store import MachineStore
from meshd.daemon.nodes.agents import Asks
from meshd.daemon.observe.source import Readable
from meshd.model.observed import SlurmView
from meshd.runtime.clock import Clock
from meshd.store.auth_rotations import AuthRotations
from meshd.store.machine_keys import OpenKeys
from meshd.tailnet.admin import AuthKey
from meshd.tailnet.link import TailnetLink

SILENT_POLLS = 2.5
"""An agent cannot be reached when it has not spoken for as long as this many polls may take."""


@dataclass(frozen=True, slots=True)
class AuthKeyParts:
    """What the rest of the daemon uses."""

    controller: AuthKeyController
    machine_keys: MachineKeys
    spares: SpareKeys
    service: AuthKeyService


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
) -> AuthKeyParts:
    """Build the parts. Raises StoreError when the journal cannot be read."""
    journal, silent_s = machine_store.journal, SILENT_POLLS * settings.node_api.poll_hold_s
    machine_keys = MachineKeys(OpenKeys(journal), ports, rotations, machine_store, tailnet, clock)
    spares = SpareKeys(machine_keys, agents, machine_store, rotations, clock, silent_s)
    fleet = Fleet(journal, tailnet, slurm, ports.store, spares, clock, silent_s)
    context = StepContext(settings.cluster.name, ports, prover, agents, machine_store, tailnet, machine_keys, spares)
    ahead = timedelta(days=settings.tailnet.rotate_before_expiry_d)
    triggers, primer = RotationTriggers(ports, key_record, ahead, clock), HandshakePrimer(tailnet, agents, clock)
    checks = DeviceChecks(settings.cluster.name, ports, journal, tailnet, machine_keys, spares, ahead, clock)
    controller = AuthKeyController(rotations, active, context, fleet, triggers, primer, checks, clock)
    service = AuthKeyService(controller, ports, fleet, active, clock)
    return AuthKeyParts(controller, machine_keys, spares, service)
