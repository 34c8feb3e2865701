"""PURE: devices of the tailnet: whose they are, who may speak for a machine, which keys expire, and which lack IPv4.

Slurm's files hold IPv4 addresses only, so nothing is rented for a tailnet without them. Tailscale's policy can switch
them off (the node attribute `disable-ipv4`), and headscale's configuration can leave out `prefixes.v4`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from meshd.codes import JoinCode
from meshd.errors import JoinRefused
from meshd.model.ids import parse_machine_name
from meshd.model.machine import IN_SLURM, Machine
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


CLONE_CURE = "make the image anew without /var/lib/tailscale, /var/lib/meshd-node and /etc/meshd-node"


def check_owner(machine: str, peer: TailnetPeer, machines: Iterable[Machine]) -> None:
    """Whether a device that speaks for a machine may be its own.

    Args:
        machine: whose token it has.
        peer: the device that calls.
        machines: those that are not GONE.

    Raises:
        JoinRefused: it is another machine's device, or has another machine's address.
    """
    for other in machines:
        if other.name == machine:
            continue
        if other.tailnet_id and other.tailnet_id == peer.id:
            raise JoinRefused(
                f"{machine} shows the tailnet device of {other.name} ({peer.tailnet_ip}): both have one node key, so "
                "its image holds the tailscale state of a machine that had joined",
                CLONE_CURE,
                code=JoinCode.DEVICE_COPIED,
            )
        if other.phase in IN_SLURM and not other.left_slurm and other.tailnet_ip == peer.tailnet_ip:
            raise JoinRefused(
                f"{machine} has the address {peer.tailnet_ip} of {other.name}, whose own device was deleted",
                f"it joins when {other.name} has left Slurm or has another address: `meshctl remove {other.name}`",
                fatal=False,
                code=JoinCode.ADDRESS_TAKEN,
            )


def check_new_device(machine: Machine, peer: TailnetPeer, view: TailnetView, machines: Iterable[Machine]) -> None:
    """Whether another device than the one that a machine joined with is that machine's now.

    Its node token is proved already. The device that it joined with must have been deleted: a copy of a machine's disk
    has its token too.

    Args:
        machine: whose node token it has.
        peer: the device that calls.
        view: the tailnet; its absences can be believed.
        machines: those that are not GONE.

    Raises:
        JoinRefused: it is not.
    """
    if peer.hostname != machine.name:
        raise JoinRefused(
            f"{peer.hostname or 'a device without a name'} ({peer.tailnet_ip}) has the node token of {machine.name}: "
            f"its disk is a copy of {machine.name}'s",
            CLONE_CURE,
            code=JoinCode.DEVICE_COPIED,
        )
    check_owner(machine.name, peer, machines)
    old = view.peers.get(machine.tailnet_id)
    if old is not None:
        state = "online" if old.online else "offline"
        raise JoinRefused(
            f"{machine.name} speaks from another device ({peer.tailnet_ip}) than the one that it joined with, which is "
            f"still there ({old.tailnet_ip}, {state})",
            "delete the old device in the admin console when its machine lost its tailscale state; an online one is a "
            "second machine with a copy of this one's disk",
            fatal=False,
            code=JoinCode.OLD_DEVICE_THERE,
        )
    if machine.phase not in IN_SLURM:
        raise JoinRefused(
            f"{machine.name} is {machine.phase.value}",
            "it has not joined, or is on its way out",
            code=JoinCode.NOT_JOINABLE,
        )


def same_machine_id(machines: Iterable[Machine]) -> list[tuple[str, ...]]:
    """Names of machines that tell one machine id, each group in order."""
    by_id: dict[str, list[str]] = {}
    for machine in machines:
        if machine.facts is not None and machine.facts.machine_id:
            by_id.setdefault(machine.facts.machine_id, []).append(machine.name)
    return sorted(tuple(sorted(names)) for names in by_id.values() if len(names) > 1)


NO_IPV4 = "the tailnet gives this machine no IPv4 address, and Slurm's files need one"
NO_IPV4_HEAD = "the tailnet gives the head no IPv4 address, and Slurm's files need one"
NO_IPV4_CURE = (
    "take the node attribute `disable-ipv4` out of the tailnet's policy (headscale: set `prefixes.v4`); "
    "afterwards `tailscale ip -4` must show an address on the head"
)


def head_without_ipv4(view: TailnetView) -> str:
    """Why this tailnet cannot carry the cluster; "" when it can. Only a healthy view is believed."""
    return NO_IPV4_HEAD if view.healthy and not view.self_tailnet_ip else ""


def machines_without_ipv4(view: TailnetView, names: frozenset[str]) -> tuple[str, ...]:
    """The machines of ours that are online and have no IPv4 address.

    Args:
        view: the tailnet.
        names: host names of our machines.
    """
    return tuple(
        sorted(p.hostname for p in view.peers.values() if p.online and not p.tailnet_ip and p.hostname in names)
    )
