"""What the journal says once a machine was accepted. Shared by the node API and the simulation of the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshd.codes import EventKind, JoinCode
from meshd.config import SlurmSettings
from meshd.daemon.machine_store import MachineStore
from meshd.errors import JoinRefused
from meshd.model.hardware import NodeFacts
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.observed import TailnetPeer
from meshd.plan.admission import check_same
from meshd.plan.devices import NO_IPV4, NO_IPV4_CURE

MEMORY_FRACTION = SlurmSettings().memory_fraction
WAITING = frozenset({Phase.BOOTING, Phase.JOINING})


def check_join(machine: Machine, peer: TailnetPeer, facts: NodeFacts, memory_fraction: float = MEMORY_FRACTION) -> None:
    """Refuse a machine without an address that Slurm could use, and one that Slurm has and that is another now.

    Raises:
        JoinRefused: with the cure.
    """
    if not peer.tailnet_ip:
        raise JoinRefused(NO_IPV4, NO_IPV4_CURE, code=JoinCode.NO_IPV4)
    if machine.phase in IN_SLURM and machine.facts is not None:
        check_same(facts, machine.facts, gpus_rented=machine.gpus, memory_fraction=memory_fraction)


def accept_join(
    machine_store: MachineStore,
    machine: Machine,
    peer: TailnetPeer,
    facts: NodeFacts,
    memory_fraction: float = MEMORY_FRACTION,
) -> Machine:
    """Write down that a machine joined, or joined again after its agent or the machine restarted.

    A machine that joins again keeps the hardware that it was accepted with: Slurm's files do not change under its jobs.

    Raises:
        JoinRefused: the machine is not in a phase in which it may join, has no IPv4 address, or is not any more what it
            was.
    """
    check_join(machine, peer, facts, memory_fraction)
    if machine.phase in IN_SLURM and machine.facts is not None:
        facts = replace(facts, shape=machine.facts.shape, gpus=machine.facts.gpus)
    news: dict[str, Any] = {
        "tailnet_ip": peer.tailnet_ip,
        "tailnet_id": peer.id,
        "path": peer.path or machine.path,
        "facts": facts,
    }
    if machine.phase in WAITING:
        joined = f"joined from {peer.tailnet_ip}"  # what kept it from that is over
        return machine_store.move(
            machine.name, Phase.CONFIGURING, joined, heartbeat_at=machine_store.now(), problem="", **news
        )  # fmt: skip
    if machine.phase in IN_SLURM and peer.tailnet_ip == machine.tailnet_ip:
        if facts == machine.facts:
            return machine_store.journal.note(machine)
        return machine_store.change(machine.name, EventKind.REJOINED, f"joined again from {peer.tailnet_ip}", **news)
    if machine.phase in {Phase.REQUESTED, Phase.LAUNCHING}:
        raise JoinRefused(
            "the cloud has not confirmed this machine yet",
            "trying again is enough",
            fatal=False,
            code=JoinCode.NOT_CONFIRMED,
        )
    raise JoinRefused(
        f"this machine is {machine.phase.value}",
        "it is on its way out and may no longer join",
        code=JoinCode.NOT_JOINABLE,
    )
