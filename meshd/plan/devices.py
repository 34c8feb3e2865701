"""PURE: devices of the tailnet: whose they are, which may call for a machine, whose keys expire, and which lack IPv4.

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
    """A device's node key with an expiry. The keys of tagged devices never expire.

    Attributes:
        machine: the name of the machine; "" for the head.
        expired: the control server says that it has expired.
    """

    machine: str
    expires: datetime
    expired: bool = False

    @property
    def owner(self) -> str:
        """The machine or the head, for people."""
        return self.machine or HEAD


def device_of(machine: Machine, view: TailnetView) -> TailnetPeer | None:
    """The device that the machine joined with; None when it has none or the tailnet does not show it."""
    return view.peers.get(machine.tailnet_id) if machine.tailnet_id else None


def expiring_keys(machines: Iterable[Machine], view: TailnetView) -> list[NodeKey]:
    """The node keys with an expiry, of the head and of these machines, by time of expiry."""
    found = [NodeKey("", view.self_key_expiry)] if view.self_key_expiry is not None else []
    for machine in machines:
        peer = device_of(machine, view)
        if peer is not None and peer.key_expiry is not None:
            found.append(NodeKey(machine.name, peer.key_expiry, peer.expired))
    return sorted(found, key=lambda key: (key.expires, key.machine))


def untagged(machines: Iterable[Machine], view: TailnetView) -> list[str]:
    """Names of the machines whose device has no tag, so that it belongs to a person's account."""
    return sorted(m.name for m in machines if (peer := device_of(m, view)) is not None and not peer.tags)


def strays(cluster: str, machines: Iterable[Machine], gone: Collection[str], view: TailnetView) -> list[TailnetPeer]:
    """Devices with a machine name of this cluster that belong to no machine.

    Args:
        cluster: the cluster's name.
        machines: those that are not GONE.
        gone: names of machines that are GONE. Their devices are deleted later, so they are not among the result.
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


CLONE_CURE = "make the image again without /var/lib/tailscale, /var/lib/meshd-node and /etc/meshd-node"


def check_owner(machine: str, peer: TailnetPeer, machines: Iterable[Machine]) -> None:
    """Check that a device that calls with a machine's token may be the device of that machine.

    Args:
        machine: the machine whose token it has.
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
                f"{machine} calls from the tailnet device of {other.name} ({peer.tailnet_ip}): both have one node "
                "key, so its image holds the tailscale state of a machine that had joined",
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
    """Check that a machine may go on with another device than the one that it joined with.

    The caller has proved the machine's node token already. The old device must have been deleted, since a copy of the
    machine's disk has the token as well.

    Args:
        machine: the machine whose node token it has.
        peer: the device that calls.
        view: the tailnet, healthy.
        machines: those that are not GONE.

    Raises:
        JoinRefused: it may not.
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
            f"{machine.name} calls from another device ({peer.tailnet_ip}) than the one that it joined with, which is "
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
    """Groups of machines that report the same machine id; the names are sorted."""
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
    """Hostnames of our machines that are online without an IPv4 address.

    Args:
        view: the tailnet.
        names: host names of our machines.
    """
    return tuple(
        sorted(p.hostname for p in view.peers.values() if p.online and not p.tailnet_ip and p.hostname in names)
    )
