"""Builds the parts that look after owned machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from meshd.daemon.auth_key.machine_keys import MachineKeys
from meshd.daemon.hosts.controller import Devices, HostController
from meshd.daemon.hosts.invitations import Invitations
from meshd.daemon.hosts.provider import Wake
from meshd.daemon.hosts.service import HostService
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.nodes.service import Whois
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.daemon.observe.source import Observed
from meshd.model.desired import Desired
from meshd.model.observed import SlurmView, TailnetPeer, value_of
from meshd.store.hosts import Hosts
from meshd.tailnet.machine_keys import invitation_key_owner


@dataclass(frozen=True, slots=True)
class HostParts:
    """The parts.

    Attributes:
        service: answers the hosts.
        invitations: answers people.
        controller: looks after hosts.
    """

    service: HostService
    invitations: Invitations
    controller: HostController


class NamedDevices:
    """Who has an address, with hosts under the names of their machines. `tailscaled` knows the devices."""

    def __init__(self, tailscaled: Whois, hosts: Hosts) -> None:
        self._tailscaled = tailscaled
        self._hosts = hosts

    async def whois(self, address: str) -> TailnetPeer:
        """Raises TailnetError."""
        peer = await self._tailscaled.whois(address)
        names = (host.machine for host in self._hosts.all() if host.machine and host.device_id == peer.id)
        return replace(peer, hostname=next(names, peer.hostname))


def open_invitations(hosts: Hosts, store: MachineStore) -> frozenset[str]:
    """The owners of the auth keys in invitations that can still be redeemed."""
    found = (host for host in hosts.all() if host.open(store.now()))
    return frozenset(invitation_key_owner(host.name, host.invitation) for host in found)


def build(
    live: LiveSettings,
    store: MachineStore,
    hosts: Hosts,
    *,
    tokens: MachineTokens,
    machine_keys: MachineKeys,
    devices: Devices | None,
    wake_host: Wake,
    desired: Callable[[], Desired],
    head_ip: Callable[[], str],
    magic_dns_suffix: Callable[[], str],
    slurm: Observed[SlurmView],
    changed: Callable[[], None],
) -> HostParts:
    """Build the parts. For the arguments see HostService, Invitations and HostController."""

    def head_address() -> str:
        return live.settings.node_api.address or head_ip()

    def slurm_version() -> str:
        view = value_of(slurm.current)
        return view.version if view is not None else ""

    invitations = Invitations(
        live, hosts, store, tokens, machine_keys, desired=desired, head_address=head_address,
        magic_dns_suffix=magic_dns_suffix, slurm_version=slurm_version,
    )  # fmt: skip
    service = HostService(
        live, hosts, store, tokens, desired=desired, head_address=head_address, slurm_version=slurm_version,
        script=invitations.script,
    )  # fmt: skip
    return HostParts(service, invitations, HostController(hosts, devices, wake_host, desired, changed, store.clock))
