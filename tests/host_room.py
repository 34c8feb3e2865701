"""The daemon's parts for owned machines, built as the daemon builds them, around what a test gives."""

from __future__ import annotations

from typing import Any

from meshd.daemon.hosts.provider import StaticProvider
from meshd.daemon.hosts.wiring import HostParts, build
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.model.desired import Desired, Pool
from meshd.model.host import Host
from meshd.model.observed import SlurmView
from meshd.store.hosts import Hosts
from tests.live import live_settings
from tests.sources import fresh

HEAD_IP = "100.64.0.1"
SUFFIX = "mine.ts.net"
DESK = Pool("desk", "", 0, 4, ("static", "aws"))
"""A pool for owned machines without GPUs."""


class NoKeys:
    """A head without a credential of the tailnet's API: it can mint no key."""

    async def for_invitation(self, _host: str, _number: int, _lifetime_s: float) -> None:
        return None


class Woken:
    """Remembers who was woken."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def __call__(self, host: Host) -> None:
        self.names.append(host.name)


class Deleted:
    """A tailnet's API that remembers which devices it has deleted."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    async def delete_device(self, device_id: str) -> None:
        self.ids.append(device_id)


def host_parts(store: MachineStore, hosts: Hosts | None = None, **given: Any) -> HostParts:
    """The parts; what the test does not give is left out."""
    ports: dict[str, Any] = {
        "tokens": MachineTokens(b"s" * 32),
        "machine_keys": NoKeys(),
        "devices": None,
        "wake_host": Woken(),
        "desired": lambda: Desired("lab", {"desk": DESK}, {}),
        "head_ip": lambda: HEAD_IP,
        "magic_dns_suffix": lambda: SUFFIX,
        "slurm": fresh(lambda: SlurmView("24.11.5", {}, ())),
        "changed": lambda: None,
    }
    live = given.pop("live", None) or live_settings(providers={"static": {}})
    return build(live, store, hosts or Hosts(store.journal), **{**ports, **given})


def static_provider(hosts: Hosts, store: MachineStore, woken: Woken | None = None) -> StaticProvider:
    """The provider on these hosts."""
    return StaticProvider(hosts, store.now, woken or Woken())
