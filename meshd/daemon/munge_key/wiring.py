"""Builds the parts that look after the munge key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import SecretBytes

from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.agents import AgentQueues
from meshd.daemon.munge_key.age import MungeKeyAge
from meshd.daemon.munge_key.controller import MungeKeyController
from meshd.daemon.munge_key.head import HeadSide
from meshd.daemon.munge_key.keys import MungeKeys
from meshd.daemon.munge_key.nodes import MungeNodes
from meshd.daemon.munge_key.service import MungeKeyService
from meshd.daemon.observe.source import Readable
from meshd.model.observed import SlurmView
from meshd.munge.key import MungeKeyStore, head_key
from meshd.munge.rotation_steps import SwitchTimings
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.store.munge_rotations import MungeRotations


@dataclass(frozen=True, slots=True)
class MungeKeyParts:
    """What the rest of the daemon uses."""

    controller: MungeKeyController
    service: MungeKeyService
    age: MungeKeyAge


def build(
    journal: Journal,
    rotations: MungeRotations,
    active: ActiveRotations,
    store: MungeKeyStore,
    head: HeadSide,
    agents: AgentQueues,
    slurm: Readable[SlurmView],
    clock: Clock,
    *,
    poll_hold_s: float,
    credential: Callable[[], SecretBytes] = head_key,
    timings: SwitchTimings | None = None,
) -> MungeKeyParts:
    """Build the parts. For the arguments see MungeKeyController, MungeKeys, MungeNodes and MungeKeyService."""
    nodes = MungeNodes(journal, slurm, clock, poll_hold_s)
    keys = MungeKeys(rotations, store, credential, head, clock)
    controller = MungeKeyController(rotations, keys, head, agents, nodes, slurm, clock, timings or SwitchTimings())
    return MungeKeyParts(controller, MungeKeyService(controller, active, clock), MungeKeyAge(controller, clock))
