"""Which tailnet device speaks for which machine: one that replaces a deleted one is accepted, a copy is refused."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Protocol

from meshd.api.schema import ProblemView
from meshd.codes import EventKind, JoinCode, ProblemCode
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.observe.source import Observed
from meshd.daemon.reporting import problem
from meshd.errors import JoinRefused, NotNow, TailnetError
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh, TailnetPeer, TailnetView
from meshd.plan.devices import CLONE_CURE, check_new_device, check_owner
from meshd.runtime.tokenbucket import TokenBuckets
from meshd.store.join_tokens import JoinTokens

SHOWN_FOR = timedelta(minutes=15)
"""How long a copy stays a problem after it spoke last; its agent comes again at least every minute."""

FORMER_MAX = 8
CHANGES = 24
"""How often a machine may change its device within a day; each change is an event, an API call and a line."""
DAY_S = 86400.0
COPIES_MAX = 256
"""The most devices shown that claim to be a machine: a stranger chooses their names."""


class Addresses(Protocol):
    """What is asked of the tailnet's API."""

    async def set_address(self, device_id: str, tailnet_ip: str) -> None:
        """Give a device this address. Idempotent. Raises TailnetError."""
        ...


class MachineDevices:
    """Takes and refuses devices.

    Args:
        records: the journal.
        tailnet: what the tailnet said last.
        api: the tailnet's; None without a credential.
    """

    def __init__(self, machine_store: MachineStore, tailnet: Observed[TailnetView], api: Addresses | None) -> None:
        self._machine_store = machine_store
        self._tailnet = tailnet
        self._api = api
        self._one_at_a_time = asyncio.Lock()
        self._changes = TokenBuckets(CHANGES, DAY_S / CHANGES)
        self._flapping: dict[str, datetime] = {}
        self._copies: dict[tuple[str, str], tuple[str, datetime]] = {}

    def check(self, machine: str, peer: TailnetPeer) -> None:
        """Whether the device may join as this machine.

        Raises:
            JoinRefused: it is another machine's; it becomes a problem.
        """
        try:
            check_owner(machine, peer, self._machine_store.journal.machines())
        except JoinRefused as error:
            self._note(machine, peer, error)
            raise

    async def take(self, machine: str, peer: TailnetPeer) -> None:
        """Take another device than the one that it joined with for the machine's own, and write that down.

        It gets its old address back where the tailnet's API can do that: then open connections, and steps of Slurm,
        go on as if nothing had been. Else Slurm's line follows the journal. The node token was proved by the caller.

        Raises:
            JoinRefused: it is not the machine's; a copy becomes a problem.
            NotNow: the tailnet's word cannot be believed now: that the old device is gone is not known.
        """
        async with self._one_at_a_time:
            record = self._machine_store.get(machine)
            if record.tailnet_id == peer.id:
                return  # taken while this call waited
            seen = self._tailnet.current
            if not isinstance(seen, Fresh) or not seen.value.healthy:
                raise NotNow("the head's tailnet is not well, so meshd cannot know whether the old device is gone")
            try:
                check_new_device(record, peer, seen.value, self._machine_store.journal.machines())
            except JoinRefused as error:
                self._note(machine, peer, error)
                raise
            if not self._changes.try_take(machine, self._machine_store.clock.monotonic_s()):
                self._flapping[machine] = self._machine_store.now()
                raise JoinRefused(
                    f"{machine} has come with {CHANGES} other devices within {DAY_S / 3600:g} h",
                    "look at its devices in the admin console; meshd takes another one later", fatal=False,
                    code=JoinCode.TOO_MANY_DEVICES,
                )  # fmt: skip
            why = await self._give_back_address(record, peer)
            self._write_down(self._machine_store.get(machine), peer, why)

    async def _give_back_address(self, record: Machine, peer: TailnetPeer) -> str:
        """Why the device does not have the machine's address; "" when it has."""
        if peer.tailnet_ip == record.tailnet_ip:
            return ""
        if self._api is None:
            return "without an API credential it cannot get its old address back"
        new, old = peer.tailnet_ip, record.tailnet_ip
        text = f"it came back with another device and the address {new}: {old} is given back to it"
        self._machine_store.node_event(record.name, EventKind.DEVICE, text)
        try:
            await self._api.set_address(peer.id, record.tailnet_ip)
        except TailnetError as error:
            return str(error)
        return ""

    def _write_down(self, record: Machine, peer: TailnetPeer, why: str) -> None:
        old, new = record.tailnet_ip, peer.tailnet_ip if why else record.tailnet_ip
        former = tuple(one for one in (*record.former_ips, old) if one and one != new)[-FORMER_MAX:]
        text = f"its tailnet device was deleted and replaced, with its address {old}"
        if why:
            text = (
                f"its tailnet device was deleted and replaced: {new} instead of {old} ({why}); steps that srun had "
                "started there may hang: scancel them"
            )
        JoinTokens(self._machine_store.journal).rebind(record.name, peer.id, self._machine_store.now())
        self._machine_store.change(
            record.name, EventKind.DEVICE, text, tailnet_ip=new, tailnet_id=peer.id, former_ips=former, path=peer.path,
            line_published=record.line_published and (new == old or record.phase is not Phase.CONFIGURING),
            device_gone_since=None,
        )  # fmt: skip

    def problems(self, now: datetime) -> list[ProblemView]:
        """Copies of machines that spoke lately."""
        self._copies = {pair: seen for pair, seen in self._copies.items() if now - seen[1] < SHOWN_FOR}
        self._flapping = {name: at for name, at in self._flapping.items() if now - at < SHOWN_FOR}
        flapping = [
            problem(
                ProblemCode.DEVICE_FLAPPING, "error",
                f"{name} keeps calling from new devices: meshd takes no further one today",
                f"delete those that are not its own in the admin console; `meshctl remove {name}` gives it back",
                machine=name,
            )
            for name in sorted(self._flapping)
        ]  # fmt: skip
        return flapping + [
            problem(ProblemCode.DEVICE_COPIED, "error", text, CLONE_CURE, machine=machine)
            for (machine, _), (text, _) in sorted(self._copies.items())
        ]

    def _note(self, machine: str, peer: TailnetPeer, error: JoinRefused) -> None:
        """An event for a copy that is new, and a problem while it speaks."""
        if not error.fatal:
            return
        now, pair = self._machine_store.now(), (machine, peer.hostname)
        last = self._copies.get(pair)
        if last is None or now - last[1] >= SHOWN_FOR:
            self._machine_store.node_event(machine, EventKind.COPY, str(error))
        self._copies.pop(pair, None)
        self._copies[pair] = (error.reason, now)
        while len(self._copies) > COPIES_MAX:
            del self._copies[next(iter(self._copies))]
