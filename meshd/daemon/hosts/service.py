"""What is done for owned machines: the HostHandlers of the node API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from meshd.api.host_schema import EnrolAnswer, EnrolIn, EvictedIn, HostPollAnswer, HostPollIn, JoinFile
from meshd.bootstrap.assets import agent_sha256
from meshd.bootstrap.tokens import hash_token
from meshd.codes import JoinCode
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.errors import JoinRefused, NotNow
from meshd.model.desired import Desired
from meshd.model.hardware import NodeFacts
from meshd.model.host import Host, HostOrder
from meshd.model.observed import TailnetPeer
from meshd.plan.admission import release, slurmd_window
from meshd.plan.devices import NO_IPV4, NO_IPV4_CURE
from meshd.plan.hosts import order_of, unsuited
from meshd.runtime.tokenbucket import TokenBuckets
from meshd.store.hosts import Hosts

PROBLEMS_BURST = 10
PROBLEMS_EVERY_S = 300.0
"""How often a host's problem is an event; others are kept in memory alone."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of hosts, by their hashes."""

    tokens: MachineTokens
    of: tuple[tuple[str, int], ...] = ()
    invitations: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)

    def current(self, hosts: Hosts) -> Tokens:
        """Those of these hosts; the same object while none came or went."""
        of = tuple((host.name, host.invitation) for host in hosts.all())
        if of == self.of:
            return self
        make = self.tokens
        return Tokens(
            make, of,
            {hash_token(make.invitation_token(*one)): one[0] for one in of},
            {hash_token(make.host_token(*one)): one[0] for one in of},
        )  # fmt: skip


class HostService:
    """See meshd.api.host_handlers.HostHandlers for what each method promises.

    Args:
        live: the settings.
        hosts: the journal's.
        machine_store: the machines.
        tokens: makes the tokens.
        desired: the pools as they are wanted now.
        head_address: of the node API; "" while it is not known.
        slurm_version: of slurmctld; "" while it is not known.
        script: renders the script of an invitation.
    """

    def __init__(
        self,
        live: LiveSettings,
        hosts: Hosts,
        machine_store: MachineStore,
        tokens: MachineTokens,
        *,
        desired: Callable[[], Desired],
        head_address: Callable[[], str],
        slurm_version: Callable[[], str],
        script: Callable[[Host], Awaitable[str]],
    ) -> None:
        self._live = live
        self._hosts = hosts
        self._machine_store = machine_store
        self._make = tokens
        self._tokens = Tokens(tokens)
        self._desired = desired
        self._head_address = head_address
        self._slurm_version = slurm_version
        self._script = script
        self._events = TokenBuckets(PROBLEMS_BURST, PROBLEMS_EVERY_S)
        self._changed: dict[str, asyncio.Event] = {}
        hosts.on_change(self._wake)

    # -- who calls ------------------------------------------------------------------------------------------------

    def invited(self, token_hash: str) -> str | None:
        """The host of an invitation's token."""
        self._tokens = self._tokens.current(self._hosts)
        return self._tokens.invitations.get(token_hash)

    def host_of(self, token_hash: str) -> str | None:
        """The host of a host's token."""
        self._tokens = self._tokens.current(self._hosts)
        name = self._tokens.hosts.get(token_hash)
        host = self._hosts.find(name) if name else None
        return name if host is not None and host.enrolled_at is not None else None

    def check_invitation(self, name: str, peer: TailnetPeer) -> None:
        """Refuse an invitation that is over, and any other device than the first."""
        host = self._get(name)
        again = f"`meshctl invite --pool {host.pool} --name {name}` makes another, once {name} is removed"
        if host.token_used:
            raise JoinRefused(f"the invitation of {name} is used up", again, code=JoinCode.INVITATION_USED)
        if host.enrolled_at is not None and host.device_id != peer.id:
            raise JoinRefused(
                f"another device has used the invitation of {name}", again, code=JoinCode.INVITATION_USED
            )  # fmt: skip
        if self._now() >= host.expires_at:
            raise JoinRefused(
                f"the invitation of {name} expired at {host.expires_at:%Y-%m-%d %H:%M:%S} UTC",
                f"`meshctl invite --pool {host.pool} --name {name}` makes another",
                code=JoinCode.INVITATION_EXPIRED,
            )

    def check_host(self, name: str, peer: TailnetPeer) -> None:
        """Refuse any other device; the first call closes the invitation."""
        host = self._get(name)
        if host.device_id != peer.id:
            raise JoinRefused(
                f"{peer.hostname or 'a device without a name'} ({peer.tailnet_ip}) has the token of {name}, which is "
                "another device",
                f"if {name} has a new device: `meshctl remove --force {name}`, then invite it again",
                code=JoinCode.OTHER_DEVICE,
            )
        if not host.token_used:
            self._hosts.change(name, "it has its token; its invitation is closed", self._now(), token_used=True)

    # -- what is done ---------------------------------------------------------------------------------------------

    async def script(self, name: str) -> str:
        """The script of an open invitation."""
        return await self._script(self._get(name))

    async def enrol(self, name: str, peer: TailnetPeer, body: EnrolIn) -> EnrolAnswer:
        """Make the machine the host, if it can be a node of its pool."""
        self.check_invitation(name, peer)  # another device may have been faster while the body came
        host = self._get(name)
        self._check_device(host, peer)
        self._check_slurm(body)
        host = replace(
            host, facts=body.facts.to_model(), device_id=peer.id, tailnet_ip=peer.tailnet_ip,
            enrolled_at=host.enrolled_at or self._now(), ours=body.tailnet == "ours" and host.auth_key,
            seen_at=self._now(),
        )  # fmt: skip
        pool = self._desired().pools.get(host.pool)
        why = f"there is no pool {host.pool} any more" if pool is None else unsuited(host, pool)
        if why:
            raise JoinRefused(
                f"{name} cannot be a node of {host.pool}: {why}", "invite it to another pool",
                code=JoinCode.HOST_UNSUITED,
            )  # fmt: skip
        self._hosts.put(host, f"{peer.hostname} ({peer.tailnet_ip}) redeemed its invitation", self._now())
        return EnrolAnswer(
            host=name, host_token=self._make.host_token(name, host.invitation),
            poll_hold_s=self._live.settings.node_api.poll_hold_s,
        )  # fmt: skip

    async def poll(self, name: str, peer: TailnetPeer, report: HostPollIn, hold_s: float) -> HostPollAnswer:
        """Take its word, and hold the call while the order that it follows should hold."""
        self._take(self._get(name), peer, report)
        changed, follows = asyncio.Event(), (report.order, report.machine if report.order == "node" else "")
        self._changed[name] = changed
        until_s = self._machine_store.clock.monotonic_s() + hold_s
        while True:
            changed.clear()
            host = self._get(name)
            order = order_of(host)
            machine = host.machine if order is HostOrder.NODE else ""
            left_s = until_s - self._machine_store.clock.monotonic_s()
            if (order.value, machine) != follows or left_s <= 0:
                return self._answer(host, order)
            await _until(changed, self._machine_store.clock.sleep, left_s)
            if name not in self._changed or self._changed[name] is not changed:
                return self._answer(self._get(name), order_of(self._get(name)))  # a newer poll waits

    async def evicted(self, name: str, body: EvictedIn) -> None:
        """Write down that it is done. The device is deleted when the host has the answer."""
        host = self._get(name)
        if order_of(host) is not HostOrder.EVICT:
            raise JoinRefused(f"nobody has removed {name}", "the host polls, and does what it is told", fatal=False)
        left = f"; not restored: {'; '.join(body.not_restored)}"[:2000] if body.not_restored else ""
        if host.evicted_at is None:
            self._hosts.change(name, f"meshd is off the machine{left}", self._now(), evicted_at=self._now())

    # -- inside ---------------------------------------------------------------------------------------------------

    def _take(self, host: Host, peer: TailnetPeer, report: HostPollIn) -> None:
        awake = host.sleeping_since is not None and not report.order
        host = replace(
            host, seen_at=self._now(), tailnet_ip=peer.tailnet_ip, state=report.state, runs=report.machine,
            problem=report.problem, sleeping_since=None if awake else host.sleeping_since,
        )  # fmt: skip
        before = self._get(host.name)
        told = report.problem and report.problem != before.problem
        facts = report.facts.to_model() if report.facts is not None else None
        changed = facts is not None and _hardware(facts) != _hardware(host.facts)
        if changed:
            host = replace(host, facts=facts)
        if awake:
            self._hosts.put(host, "it is awake", self._now())
        elif changed and self._events.try_take(host.name, self._machine_store.clock.monotonic_s()):
            self._hosts.put(host, "it has other hardware, or other versions, than before", self._now())
        elif told and self._events.try_take(host.name, self._machine_store.clock.monotonic_s()):
            self._hosts.put(host, report.problem, self._now())
        else:
            self._hosts.note(host)

    def _answer(self, host: Host, order: HostOrder) -> HostPollAnswer:
        settings = self._live.settings
        join = None
        if order is HostOrder.NODE:
            address = self._head_address()
            if not address:
                raise NotNow("the head does not know its tailnet address yet")
            join = JoinFile(
                machine=host.machine, heads=(address,), port=settings.node_api.port,
                token=self._make.join_token(host.machine), sha256=agent_sha256(),
                dead_man_s=settings.timing.dead_man_s,
            )  # fmt: skip
        return HostPollAnswer(
            order=order, machine=host.machine if join else "", join=join,
            sleep_command=host.sleep_command if order is HostOrder.SLEEP else (),
            poll_hold_s=settings.node_api.poll_hold_s,
        )  # fmt: skip

    def _check_device(self, host: Host, peer: TailnetPeer) -> None:
        if not peer.tailnet_ip:
            raise JoinRefused(NO_IPV4, NO_IPV4_CURE, code=JoinCode.NO_IPV4)
        others = [other.name for other in self._hosts.all() if other.device_id == peer.id and other.name != host.name]
        others += [str(m.name) for m in self._machine_store.journal.machines() if m.tailnet_id == peer.id]
        if peer.tailnet_ip == self._head_address():
            others.append("the head")
        if others:
            raise JoinRefused(
                f"this machine is {others[0]} already", "a machine can be one host only", code=JoinCode.OTHER_MACHINE
            )

    def _check_slurm(self, body: EnrolIn) -> None:
        if body.in_use:
            raise JoinRefused(
                f"Slurm or munge is in use on this machine: {body.in_use}",
                "meshd leaves such a machine alone: purge Slurm and munge there if nothing needs them, and try again",
                code=JoinCode.SLURM_IN_USE,
            )
        window, found = slurmd_window(self._slurm_version()), release(body.slurm_version)
        if body.slurm_version and window is not None and (found is None or not window[0] <= found <= window[1]):
            raise JoinRefused(
                f"slurmd {body.slurm_version} is installed, and the head's Slurm is {self._slurm_version()}",
                "install a slurmd of the head's release, or remove it: meshd installs one that fits",
                code=JoinCode.SLURMD_VERSION,
            )

    def _get(self, name: str) -> Host:
        host = self._hosts.find(name)
        if host is None:
            raise NotNow(f"{name} was removed meanwhile")
        return host

    def _now(self) -> datetime:
        return self._machine_store.now()

    def _wake(self, name: str) -> None:
        if name in self._changed:
            self._changed[name].set()


def _hardware(facts: NodeFacts | None) -> NodeFacts | None:
    """The facts without what differs each time."""
    return replace(facts, clock_skew_s=0.0) if facts is not None else None


async def _until(changed: asyncio.Event, sleep: Callable[[float], Awaitable[None]], seconds: float) -> None:
    """Return when it is set, or at the latest after the given seconds."""
    waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(sleep(seconds))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
