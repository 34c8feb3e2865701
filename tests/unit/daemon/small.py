"""A small world around the real steps, executor, loop and journal: one cloud, one Slurm, agents that answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from meshd.config import ProviderSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.create_calls import UserData
from meshd.daemon.machines.wiring import build as build_machines
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.errors import NotFound, SlurmError
from meshd.model.desired import Desired, Policy, Pool
from meshd.model.guards import Guards
from meshd.model.machine import Machine
from meshd.model.observed import SlurmNode, SlurmView, Snapshot
from meshd.provider_api import GangRequest, Instance, InstanceId, InstanceState, LaunchRequest, ProviderCapabilities
from meshd.slurm.job_signal import JobSignal
from meshd.store.freezes import Freezes
from meshd.store.journal import Journal
from tests.clocks import HandClock
from tests.live import live_settings
from tests.unit.worlds import AWS, NOW, slurm, snapshot


class Cloud:
    """Rents and ends; raises what it is told to."""

    name = AWS
    capabilities = ProviderCapabilities()

    def __init__(self) -> None:
        self.launched: list[LaunchRequest] = []
        self.launched_at: datetime | None = None
        """When it says that it has launched a machine."""
        self.ended: list[str] = []
        self.asked: list[str] = []
        self.known: dict[str, Instance] = {}
        self.errors: list[Exception] = []

    async def launch(self, request: LaunchRequest) -> Instance:
        self.launched.append(request)
        self._raise()
        return Instance(
            AWS, InstanceId(f"i-{len(self.launched)}"), request.token, InstanceState.BOOTING, "r1", "g.1",
            launched_at=self.launched_at,
        )  # fmt: skip

    async def get(self, instance: Instance) -> Instance:
        self.asked.append(instance.id)
        if instance.id not in self.known:
            raise NotFound("no such machine")
        return self.known[instance.id]

    async def terminate(self, instance: Instance) -> None:
        self._raise()
        self.ended.append(instance.id)

    def _raise(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


class GangCloud(Cloud):
    """A cloud that rents gangs."""

    capabilities = ProviderCapabilities(idempotent_launch=True, gang_max=500)

    def __init__(self) -> None:
        super().__init__()
        self.gangs: list[GangRequest] = []

    async def launch_gang(self, request: GangRequest) -> Sequence[Instance]:
        self.gangs.append(request)
        self._raise()
        return [
            Instance(AWS, InstanceId(f"i-{token}"), token, InstanceState.BOOTING, "r1", "g.1")
            for token in request.tokens
        ]


class Slurm:
    """Nodes as they are set; every order is written down."""

    def __init__(self) -> None:
        self.seen = slurm()
        self.orders: list[str] = []
        self.down = False
        self.unread: set[str] = set()
        """Jobs whose scripts cannot be read."""
        self.settings: dict[str, str] = {}
        self.before_view: Callable[[], None] = lambda: None

    async def view(self) -> SlurmView:
        await asyncio.sleep(0)
        self.before_view()
        if self.down:
            raise SlurmError("slurmctld does not answer")
        return self.seen

    def set(self, *nodes: SlurmNode, jobs: dict[str, str] | None = None) -> None:
        self.seen = slurm(*nodes, jobs=jobs)

    async def node_settings(self) -> Mapping[str, str]:
        if self.down:
            raise SlurmError("slurmctld does not answer")
        return self.settings

    async def drain(self, slot: str, reason: str) -> None:
        self.orders.append(f"drain {slot}")
        self._states(slot, lambda states: states | {"DRAIN"}, reason)

    async def resume(self, slot: str) -> None:
        self.orders.append(f"resume {slot}")
        self._states(slot, lambda states: states - {"DRAIN"}, "")

    async def forget_reason(self, slot: str) -> None:
        self.orders.append(f"forget {slot}")
        self._states(slot, lambda states: states, "")

    async def set_down(self, slot: str, reason: str) -> None:
        self.orders.append(f"down {slot}")
        self._states(slot, lambda states: frozenset({"DOWN"}) | (states & {"DRAIN"}), reason)

    async def power_down(self, slots: Collection[str], reason: str = "", *, force: bool = False) -> None:
        self.orders.append(f"power_down{' force' if force else ''} {','.join(slots)}")
        for slot in slots:
            self._states(slot, lambda states: (states & {"CLOUD"}) | {"IDLE", "POWERING_DOWN"}, reason)

    async def set_node_addrs(self, addrs: Mapping[str, str]) -> None:
        self.orders.append(f"addr {' '.join(f'{slot}={address}' for slot, address in addrs.items())}")

    async def own_signal(self, job: str) -> JobSignal | None:
        if job in self.unread:
            raise SlurmError(f"the script of job {job} cannot be read")
        return JobSignal("USR1")

    async def send_signal(self, job: str, signal: JobSignal) -> None:
        self.orders.append(f"signal {job}")

    async def requeue(self, job: str) -> None:
        self.orders.append(f"requeue {job}")

    def _states(self, slot: str, change: Callable[[frozenset[str]], frozenset[str]], reason: str) -> None:
        node = self.seen.nodes[slot]
        changed = replace(node, states=change(node.states), reason=reason)
        self.seen = replace(self.seen, nodes={**self.seen.nodes, slot: changed})


class Agents:
    """Obey at once, unless told to answer otherwise."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.args: list[Mapping[str, object]] = []
        self.answer = ""
        self.hastened: list[str] = []
        self.at_work = False

    async def command(self, machine: str, verb: str, args: Mapping[str, object], timeout_s: float) -> str:
        self.orders.append(verb)
        self.args.append(args)
        await asyncio.sleep(0)
        return self.answer

    def hasten(self, machine: str) -> bool:
        self.hastened.append(machine)
        return not self.at_work

    async def user_data(self, machine: Machine) -> UserData:
        return UserData("#!/bin/sh\n", "a" * 64)

    def own_key(self, provider: str) -> bool:
        return False


class Small:
    """The daemon's core with the small world around it."""

    def __init__(self, directory: Path, *machines: Machine, clock: Any = None, at_once: int = 4) -> None:
        self.clock = clock or HandClock()
        self.journal = Journal(directory / "j.db")
        self.machine_store = MachineStore(self.journal, self.clock, lambda: None)
        for one in machines:
            self.journal.put(one, "phase", "given", NOW)
        self.cloud, self.slurm, self.agents = Cloud(), Slurm(), Agents()
        self.guards = Guards()
        self.freezes = Freezes(self.journal, self.clock.now())
        self.providers: dict[str, Any] = {"aws": self.cloud}
        live = live_settings(providers={"aws": ProviderSettings(max_concurrent_calls=at_once)})
        self.seen: Snapshot = snapshot()
        self.pool = Pool("h100", "h100", 1, 8, ("aws",))
        self.reports = NodeReports(lambda name, kind, text: self.journal.event(self.clock.now(), kind, text, name))
        self.awake = asyncio.Event()
        self.machines = build_machines(
            live, self.machine_store, providers=self.providers, slurm=self.slurm, agents=self.agents, devices=None,
            user_data=self.agents, desired=self.desired, snapshot=lambda: self.seen, list_again=lambda _: None,
            reports=self.reports, awake=self.awake, freeze=lambda: self.freezes.current,
        )  # fmt: skip
        self.node_steps, self.cloud_steps = self.machines.node_steps, self.machines.cloud_steps
        self.executor, self.reconciler = self.machines.executor, self.machines.controller

    def desired(self) -> Desired:
        now = self.clock.now()
        return Desired(
            "lab", {"h100": self.pool}, self.journal.targets(), Policy(), self.journal.cooldowns(now),
            self.journal.expired_cooldowns(now), freeze=self.freezes.current, guards=self.guards,
        )  # fmt: skip

    async def settle(self) -> None:
        """Let every step in flight come to its end."""
        for _ in range(1000):
            await asyncio.sleep(0)
            if not self.executor.in_flight:
                return
        raise AssertionError("a step never ends")

    def get(self, name: str) -> Machine:
        return self.machine_store.get(name)
