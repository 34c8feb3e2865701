"""What the journal says once a machine was accepted. Shared by the node desk and the simulation of the whole."""

from __future__ import annotations

from typing import Any

from meshd.daemon.records import Records
from meshd.errors import JoinRefused
from meshd.model.hardware import NodeFacts
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.observed import TailnetPeer

WAITING = frozenset({Phase.BOOTING, Phase.JOINING})


def accept_join(records: Records, machine: Machine, peer: TailnetPeer, facts: NodeFacts) -> Machine:
    """Write down that a machine joined, or joined again after its agent or the machine restarted.

    Raises:
        JoinRefused: the machine is not in a phase in which it may join.
    """
    news: dict[str, Any] = {
        "tailnet_ip": peer.ipv4,
        "tailnet_id": peer.id,
        "path": peer.path or machine.path,
        "facts": facts,
    }
    if machine.phase in WAITING:
        return records.move(
            machine.name, Phase.CONFIGURING, f"joined from {peer.ipv4}", heartbeat_at=records.now(), **news
        )
    if machine.phase in IN_SLURM and peer.ipv4 == machine.tailnet_ip:
        if facts == machine.facts:
            return records.journal.note(machine)
        return records.change(machine.name, "rejoined", f"joined again from {peer.ipv4}", **news)
    if machine.phase in {Phase.REQUESTED, Phase.LAUNCHING}:
        raise JoinRefused("the cloud has not confirmed this machine yet", "trying again is enough", fatal=False)
    raise JoinRefused(f"this machine is {machine.phase.value}", "it is on its way out and may not join any more")
