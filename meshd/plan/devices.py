"""PURE: which devices of the tailnet are whose, and whose node key comes to its end."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from meshd.model.ids import parse_machine_name
from meshd.model.machine import Machine
from meshd.model.observed import TailnetPeer, TailnetView

HEAD = "the head"


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A device's own key that expires. Tagged devices have none.

    Attributes:
        machine: whose it is; "" for the head's.
        expired: control says so.
    """

    machine: str
    expires: datetime
    expired: bool = False

    @property
    def owner(self) -> str:
        """For people."""
        return self.machine or HEAD


def device_of(machine: Machine, view: TailnetView) -> TailnetPeer | None:
    """The device that the machine joined with; None when it has none or that is not seen."""
    return view.peers.get(machine.tailnet_id) if machine.tailnet_id else None


def expiring_keys(machines: Iterable[Machine], view: TailnetView) -> list[NodeKey]:
    """The node keys of the head and of these machines that expire at any time, the first one first."""
    found = [NodeKey("", view.self_key_expiry)] if view.self_key_expiry is not None else []
    for machine in machines:
        peer = device_of(machine, view)
        if peer is not None and peer.key_expiry is not None:
            found.append(NodeKey(machine.name, peer.key_expiry, peer.expired))
    return sorted(found, key=lambda key: (key.expires, key.machine))


def untagged(machines: Iterable[Machine], view: TailnetView) -> list[str]:
    """Names of the machines whose device has no tag: it belongs to somebody's account."""
    return sorted(m.name for m in machines if (peer := device_of(m, view)) is not None and not peer.tags)


def strays(cluster: str, machines: Iterable[Machine], gone: Collection[str], view: TailnetView) -> list[TailnetPeer]:
    """Devices with a name of this cluster's form that are no machine's.

    Args:
        cluster: its name.
        machines: those that are not GONE.
        gone: names of machines that are: their devices wait to be deleted, and are not listed here.
        view: the tailnet.
    """
    owners: dict[str, str] = {m.name: m.tailnet_id for m in machines}
    found = []
    for peer in view.peers.values():
        ours = parse_machine_name(cluster, peer.hostname) is not None and peer.hostname not in gone
        owner = owners.get(peer.hostname)
        if ours and (owner is None or owner not in ("", peer.id)):
            found.append(peer)
    return sorted(found, key=lambda peer: (peer.hostname, peer.id))
