"""The provider `static`: machines that exist already. To launch one is to assign its host, and to wake it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from meshd.errors import NoCapacity, NotFound, ProviderError
from meshd.model.host import PRESENT_S, PROVIDER, Host, HostState
from meshd.plan.hosts import REGION, away, instance_id, offer_of
from meshd.provider_api import (
    Instance,
    InstanceId,
    InstanceState,
    LaunchRequest,
    Offer,
    ProviderCapabilities,
    ProviderName,
)
from meshd.store.hosts import Hosts

WAKE_S = 600.0
"""A host that was woken may be silent for this long."""

Wake = Callable[[Host], Awaitable[None]]


class StaticProvider:
    """The adapter. Its calls read and write the journal, and wait for nothing.

    Args:
        hosts: the journal's.
        now: UTC.
        wake: wakes a host; a failure shows as the host's absence.
    """

    def __init__(self, hosts: Hosts, now: Callable[[], datetime], wake: Wake) -> None:
        self._hosts = hosts
        self._now = now
        self._wake = wake
        self._born_at = now()

    @property
    def name(self) -> ProviderName:
        """As in the settings."""
        return ProviderName(PROVIDER)

    @property
    def capabilities(self) -> ProviderCapabilities:
        """Its machines get no user data: the host fetches what it needs over the tailnet."""
        return ProviderCapabilities(tags=False, idempotent_launch=True, user_data_private=True)

    async def offers(self) -> Sequence[Offer]:
        """One for each enrolled host; not available while the host has a machine or is away."""
        found = []
        for host in self._hosts.all():
            offer = offer_of(host)
            if offer is not None and host.enrolled_at is not None:
                found.append(replace(offer, available=not (host.machine or away(host, self._now()))))
        return found

    async def launch(self, request: LaunchRequest) -> Instance:
        """Assign the offer's host. The same token assigns it once."""
        host = self._hosts.find(request.offer.instance_type)
        if host is None or host.enrolled_at is None or host.evict:
            raise self._error(NoCapacity, f"{request.offer.instance_type} is no host", "launch")
        if host.launch_token == request.token:
            return self._instance(host, request.token)
        if host.machine:
            raise self._error(NoCapacity, f"{host.name} is {host.machine}", "launch")
        absent = not host.present(self._now())
        host = self._hosts.change(
            host.name, f"it is to be {request.token}", self._now(), machine=request.token, launch_token=request.token,
            assigned_at=self._now(), sleeping_since=None, woken_at=self._now() if absent and host.can_wake else None,
        )  # fmt: skip
        if host.woken_at is not None:
            await self._wake(host)
        return self._instance(host, request.token)

    async def get(self, instance: Instance) -> Instance:
        """The host as this machine."""
        host, token = self._find(instance, "get")
        return self._instance(host, token)

    async def list(self) -> Sequence[Instance]:
        """The hosts that are machines."""
        return [self._instance(host, host.machine) for host in self._hosts.all() if host.machine]

    async def terminate(self, instance: Instance) -> None:
        """Take the machine off its host. One that is away learns it when it is back."""
        host, token = self._find(instance, "terminate")
        if host.machine == token:
            sleeps = host.can_sleep and not host.evict
            self._hosts.change(
                host.name, f"it is no longer {token}", self._now(), machine="", assigned_at=None, woken_at=None,
                sleeping_since=self._now() if sleeps else None,
            )  # fmt: skip

    async def check(self) -> str:
        """There is nothing to check: hosts call the head."""
        enrolled = sum(host.enrolled_at is not None for host in self._hosts.all())
        return f"{enrolled} owned machines; `meshctl hosts` lists them"

    async def aclose(self) -> None:
        """There is nothing to close."""

    def _find(self, instance: Instance, operation: str) -> tuple[Host, str]:
        """The host of an instance, and its machine's name. Raises NotFound."""
        name, _, token = str(instance.id).partition("/")
        host = self._hosts.find(name)
        if host is None or not token or token not in {host.machine, host.launch_token}:
            raise self._error(NotFound, f"{instance.id} is no machine of a host", operation)
        return host, token

    def _instance(self, host: Host, token: str) -> Instance:
        state, reason = self._state(host, token)
        return Instance(
            self.name, InstanceId(instance_id(host.name, token)), token, state, REGION, host.name,
            public_ip=host.tailnet_ip if state is InstanceState.RUNNING else "", launched_at=host.assigned_at,
            usd_per_hour=host.usd_per_hour, reason=reason,
        )  # fmt: skip

    def _state(self, host: Host, token: str) -> tuple[InstanceState, str]:
        now = self._now()
        if host.machine != token:
            return InstanceState.GONE, ""
        if host.present(now):
            runs = host.runs == token and host.state in {HostState.JOINING, HostState.NODE}
            return (InstanceState.RUNNING if runs else InstanceState.BOOTING), ""
        if host.woken_at is not None and now - host.woken_at < timedelta(seconds=WAKE_S):
            return InstanceState.BOOTING, ""
        if now - self._born_at < timedelta(seconds=PRESENT_S):
            return InstanceState.UNKNOWN, ""  # after a restart of meshd, until each host could have called
        return InstanceState.STOPPED, away(host, now) or f"{host.name} is asleep"

    def _error(self, kind: type[ProviderError], text: str, operation: str) -> ProviderError:
        return kind(text, provider=PROVIDER, operation=operation)
