"""Looks after hosts: notes who comes and goes, wakes again, and forgets who is evicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.controller import Controller
from meshd.daemon.hosts.provider import WAKE_S, Wake
from meshd.daemon.reporting import problem
from meshd.errors import TailnetError
from meshd.model.desired import Desired
from meshd.model.host import Host
from meshd.plan.hosts import unsuited
from meshd.runtime.clock import Clock
from meshd.store.hosts import Hosts

log = structlog.get_logger(__name__)

LOOK_S = 5.0
WAKE_AGAIN_S = 60.0
ANSWERED_S = 10.0
"""A host's device is deleted when its last answer has surely reached it."""
GIVE_UP_S = 3600.0
"""A device that cannot be deleted for so long is left to people."""
EXPIRED_KEPT = timedelta(days=1)
"""For so long an invitation that expired says so to who uses it."""


class Devices(Protocol):
    """What is asked of the tailnet's API."""

    async def delete_device(self, device_id: str) -> None:
        """Delete a device; one that does not exist is no error. Raises TailnetError."""
        ...


class HostController(Controller):
    """See the module.

    Args:
        hosts: the journal's.
        devices: the tailnet's API; None without a credential.
        wake_host: wakes a host.
        desired: the pools as they are wanted now.
        changed: called when a host comes or goes: plan again.
        clock: time.
    """

    name = "hosts"

    def __init__(
        self,
        hosts: Hosts,
        devices: Devices | None,
        wake_host: Wake,
        desired: Callable[[], Desired],
        changed: Callable[[], None],
        clock: Clock,
    ) -> None:
        super().__init__(clock)
        self._hosts = hosts
        self._devices = devices
        self._wake_host = wake_host
        self._desired = desired
        self._changed = changed
        self._there: dict[str, bool] = {}
        self._woken: dict[str, datetime] = {}
        self._seen: dict[str, tuple[object, ...]] = {}
        hosts.on_change(self._look)

    async def reconcile(self) -> float:
        """Make one pass. See Controller."""
        now = self._clock.now()
        for host in self._hosts.all():
            if host.evicted_at is not None:
                await self._forget(host, now)
            elif host.enrolled_at is None:
                if now >= host.expires_at + EXPIRED_KEPT:
                    self._hosts.forget(host.name, "its invitation expired, and nobody has redeemed it", now)
            else:
                self._presence(host, now)
                await self._wake_again(host, now)
        return LOOK_S

    def problems(self) -> Iterable[ProblemView]:
        """What keeps hosts from where they should be."""
        pools = self._desired().pools
        for host in self._hosts.all():
            if host.enrolled_at is None or host.evicted_at is not None:
                continue
            pool = pools.get(host.pool)
            why = f"there is no pool {host.pool} any more" if pool is None else unsuited(host, pool)
            if text := host.problem or why:
                cure = f"see `journalctl -u meshd-host` there; `meshctl remove {host.name}` evicts it"
                yield problem(ProblemCode.HOST_STUCK, "warning", f"{host.name}: {text}", cure, pool=host.pool)

    def _look(self, name: str) -> None:
        """Plan again when what the plan reads of a host has changed; that it called is nothing new."""
        host, now = self._hosts.find(name), self._clock.now()
        seen: tuple[object, ...] = ()
        if host is not None:
            seen = (host.present(now), host.state, host.runs, host.machine, host.evict, host.facts, host.sleeping_since)
        if self._seen.get(name) != seen:
            self._seen[name] = seen
            self._changed()

    def _presence(self, host: Host, now: datetime) -> None:
        there = host.present(now)
        if self._there.get(host.name) not in {None, there}:
            left = "it went to sleep" if host.sleeping_since is not None else "it is away"
            text = "it is back" if there else left
            self._hosts.put(host, text, now)
            self._changed()
        self._there[host.name] = there

    async def _wake_again(self, host: Host, now: datetime) -> None:
        """A packet may be lost: as long as the host is awaited, it is woken again."""
        if host.woken_at is None or host.present(now) or now - host.woken_at > timedelta(seconds=WAKE_S):
            self._woken.pop(host.name, None)
            return
        last = self._woken.setdefault(host.name, host.woken_at)
        if now - last >= timedelta(seconds=WAKE_AGAIN_S):
            self._woken[host.name] = now
            await self._wake_host(host)

    async def _forget(self, host: Host, now: datetime) -> None:
        if host.evicted_at is None or now - host.evicted_at < timedelta(seconds=ANSWERED_S):
            return
        text = "meshd has forgotten it"
        if host.ours and self._devices is not None:
            try:
                await self._devices.delete_device(host.device_id)
                text += ", and deleted its tailnet device"
            except TailnetError as error:
                log.warning("host_device_not_deleted", host=host.name, reason=str(error))
                if now - host.evicted_at < timedelta(seconds=GIVE_UP_S):
                    return
                text += f"; delete its tailnet device by hand: {error}"
        self._hosts.forget(host.name, text, now)
