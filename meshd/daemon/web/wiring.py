"""Builds the parts of the web page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from meshd.api.handlers import Handlers
from meshd.api.web.pages import Pages
from meshd.api.web.visitors import Tailscaled, Visitors
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.web.sampler import Sampler
from meshd.daemon.web.service import WebService
from meshd.model.host import Host
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.tailnet.status import Identity
from meshd.tailnet.watcher import TailnetWatcher


@dataclass(frozen=True, slots=True)
class WebParts:
    """The parts.

    Attributes:
        service: serves the page.
        sampler: takes the samples for its plots.
    """

    service: WebService
    sampler: Sampler


class Nodes:
    """Tells the devices that are machines of the cluster, hosts among them. Jobs of many users run there."""

    def __init__(self, journal: Journal, hosts: Callable[[], Iterable[Host]]) -> None:
        self._journal = journal
        self._hosts = hosts

    def __call__(self, who: Identity) -> bool:
        """Whether a device is one: by its address, its name, or its id."""
        addresses = set(who.addresses)
        return any(host.device_id == who.device_id or host.tailnet_ip in addresses for host in self._hosts()) or any(
            machine.name == who.hostname or machine.tailnet_ip in addresses for machine in self._journal.machines()
        )


def build(
    live: LiveSettings,
    journal: Journal,
    *,
    handlers: Callable[[], Handlers],
    tailscaled: Tailscaled,
    tailnet: TailnetWatcher,
    hosts: Callable[[], Iterable[Host]],
    clock: Clock,
) -> WebParts:
    """Build the parts. For the arguments see WebService, Sampler and Visitors."""
    sampler = Sampler(live, journal, handlers, clock)
    visitors = Visitors(tailscaled, lambda: live.settings.web.allow, Nodes(journal, hosts), clock)
    pages = Pages(handlers, sampler.samples.read, clock)
    return WebParts(WebService(live, tailnet, pages, visitors, clock), sampler)
