"""The daemon's engine over all five clouds at once: real adapters over HTTP, agents that speak the real node API.

Machines are only records, each with an agent that joins from its own loopback address. Slurm is a table, and the test
moves the clock. A seed determines targets, failures and faults of each cloud; which call a fault hits may still differ
between runs, because calls of several clouds race.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import aiohttp
from pydantic import SecretBytes

from deploy.sandbox.clouds.ledger import Ledger, Life, RentedMachine
from deploy.sandbox.clouds.server import CloudServer, ServerOptions
from deploy.sandbox.hypervisor import HollowHypervisor
from meshd.api.node_api import NodeApi
from meshd.api.node_schema import PollIn
from meshd.config import Settings, TimingSettings
from meshd.contract.cases.random_faults import CHANCES, LAG_S
from meshd.contract.faults import CloudFault, FaultKind, When
from meshd.daemon.agents import AgentQueues
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines import desired_state as wanted
from meshd.daemon.machines.create_calls import UserData
from meshd.daemon.machines.wiring import build as build_machines
from meshd.daemon.nodes.service import HeadFacts
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.daemon.observe.source import sources_of
from meshd.daemon.observe.sources import Sources
from meshd.daemon.providers.guards import Guards
from meshd.daemon.providers.registry import load_providers
from meshd.errors import TailnetError
from meshd.model.desired import Desired
from meshd.model.hardware import GpuFact, NodeFacts, NodeShape
from meshd.model.machine import IN_SLURM
from meshd.model.machine import Machine as Record
from meshd.model.observed import Fresh, SlurmNode, Snapshot, TailnetPeer, TailnetView
from meshd.obs.metrics import Metrics
from meshd.plan.ledger import rounding_of
from meshd.store.journal import Journal
from meshd.store.ledger import Ledger as MachineLedger
from tests.contract.rigs import RIGS, SECRET, ManualClock
from tests.live import live_settings
from tests.node_room import node_parts
from tests.sent import script_of
from tests.sources import fresh
from tests.unit.daemon.small import Slurm

CLOUDS = tuple(sorted(RIGS))
POOLS = (*CLOUDS, "any")
"""A pool for each cloud, so that each has work, and one that may rent from all."""
STEPS_S = 1.0
"""Real time that a round waits for its steps, in seconds. A step may continue in the next round."""
_TOKEN = re.compile(r"join-token=(\S+)")
_PARTS: Mapping[str, Any] = {"gpu": "h100", "gpus_per_node": 1, "max_nodes": 4, "spot": "prefer"}


class RoundClock(ManualClock):
    """A clock that moves by rounds. Sleeping does not wait."""

    def monotonic_s(self) -> float:
        return self.now().timestamp()

    async def sleep(self, delay_s: float) -> None:
        self.advance(delay_s)
        await asyncio.sleep(0)


class Slurmctld(Slurm):
    """Slurm's table of nodes: a node for each machine in Slurm, up while its slurmd runs."""

    def publish(self, machines: list[Record], up: set[str]) -> dict[str, str]:
        """Set the nodes from the journal; returns the lines in force."""
        lines = {m.slot: m.tailnet_ip for m in machines if m.phase in IN_SLURM and m.tailnet_ip and not m.left_slurm}
        self.seen = replace(self.seen, nodes={slot: self._node(slot, ip, ip in up) for slot, ip in lines.items()})
        return {str(slot): ip for slot, ip in lines.items()}

    def _node(self, slot: str, address: str, up: bool) -> SlurmNode:
        before = self.seen.nodes.get(slot)
        held = before if before is not None and before.node_addr == address else SlurmNode(slot, address, frozenset())
        states = frozenset({"IDLE" if up else "DOWN"}) | (held.states & {"DRAIN"})
        return replace(held, states=states)


@dataclass
class Agent:
    """The node agent of one machine. The cloud's metadata service tells it `instance_id`."""

    machine: RentedMachine
    source: str
    peer: TailnetPeer
    instance_id: str
    http: aiohttp.ClientSession
    node_token: str = ""
    joined: bool = False
    roster_version: int = 0
    slurmd: bool = False
    results: list[dict[str, object]] = field(default_factory=list)

    async def turn(self, base: str) -> None:
        """Join, or report and receive commands. When the head refuses, try again in the next turn."""
        if self.joined:
            await self._poll(base)
        else:
            await self._join(base)

    async def _join(self, base: str) -> None:
        found = _TOKEN.search(script_of(self.machine))
        assert found is not None, "the cloud has lost the user data"
        told = await self._post(f"{base}/join", self.node_token or found[1], {"facts": asdict(self._facts())})
        if told is not None:
            self.joined = True
            self.node_token, self.roster_version = told["node_token"], told["roster_version"]

    async def _poll(self, base: str) -> None:
        results, self.results = self.results, []
        body = {"phase": "serving", "munge_ok": True, "roster_version": self.roster_version, "results": results}
        told = await self._post(f"{base}/poll", self.node_token, body)
        if told is None:
            self.joined = False
            return
        for command in told["commands"]:
            self.slurmd = {"start_slurmd": True, "leave": False}.get(command["verb"], self.slurmd)
            self.roster_version = command["args"].get("version", self.roster_version)
            self.results.append({"id": command["id"], "ok": True})

    async def _post(self, url: str, token: str, body: Mapping[str, object]) -> dict[str, Any] | None:
        async with self.http.post(url, json=body, headers={"Authorization": f"Bearer {token}"}) as answer:
            return cast("dict[str, Any]", await answer.json()) if answer.status == 200 else None

    def _facts(self) -> NodeFacts:
        name = self.machine.gpu_name
        gpus = tuple(GpuFact(i, name, f"GPU-{i}", 81559, f"/dev/nvidia{i}") for i in range(self.machine.gpus))
        shape = NodeShape(26, 1, 1, 26, 1, 200_000)
        return NodeFacts(
            shape, gpus, "24.11.5", "1.102.5", "0.1.0", "debian 13", "x86_64", 0.0, instance_id=self.instance_id
        )


class FiveClouds:
    """Five clouds, a tailnet and Slurm. An async context manager."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.clock = RoundClock()
        self.hypervisor = HollowHypervisor()
        self.slurm = Slurmctld()
        self.agents: dict[str, Agent] = {}
        self._stack = AsyncExitStack()
        self._rigs = {name: rig() for name, rig in RIGS.items()}

    async def __aenter__(self) -> FiveClouds:
        options = ServerOptions(
            boot_s=5.0, end_s=10.0, lambda_api_key=SECRET, paperspace_api_key=SECRET, runpod_api_key=SECRET,
            lambda_limits=(0, 0), runpod_per_minute=0, watch_s=0,
        )  # fmt: skip
        self.server = await self._stack.enter_async_context(CloudServer(self.hypervisor, options, self.clock.now))
        return self

    async def __aexit__(self, *_: object) -> None:
        for agent in self.agents.values():
            await agent.http.close()
        await self._stack.aclose()

    @property
    def ledgers(self) -> Mapping[str, Ledger]:
        """The machines that each cloud really has."""
        return {name: self.server.clouds[name].ledger for name in CLOUDS}

    def machines(self) -> list[RentedMachine]:
        """Every machine that was ever made."""
        return [machine for ledger in self.ledgers.values() for machine in ledger.everything()]

    def alive(self) -> list[RentedMachine]:
        """The machines that cost money."""
        return [machine for machine in self.machines() if machine.life is not Life.ENDED]

    def settings(self) -> Settings:
        """Settings for these clouds."""
        urls = self.server.urls()
        tables = {
            name: {rig.where: urls["ec2" if name == "aws" else name], **rig.extra()} for name, rig in self._rigs.items()
        }
        tables["aws"]["instance_types"] = ["p5.4xlarge"]
        tables["gce"] |= {"instance_types": ["a3-highgpu-1g"], "insert_wait_s": 0.05}
        tables["runpod"]["spot"] = True
        pools = {name: {**_PARTS, "providers": [name] if name in CLOUDS else list(CLOUDS)} for name in POOLS}
        timing = TimingSettings(
            no_capacity_cooldown_s=30, no_capacity_cooldown_max_s=120, breaker_cooldown_s=20, boot_timeout_s=300,
            leave_timeout_s=0.3, configure_timeout_s=STEPS_S,
        )  # fmt: skip
        found: dict[str, Any] = {"cluster": {"name": "lab"}, "providers": tables, "pools": pools, "timing": timing}
        return Settings(**found)

    def inject_faults(self) -> None:
        """Inject all faults that each cloud supports, at random."""
        for name, rig in self._rigs.items():
            faults = self.server.clouds[name].faults
            faults.reseed(self.seed)
            for kind, operation, probability, seconds in (*CHANCES, (FaultKind.NEVER_BOOTS, "launch", 0.05, 0.0)):
                if kind not in rig.unsupported and kind is not FaultKind.DUPLICATE:
                    faults.inject(CloudFault(kind, operation, When.RANDOM, probability=probability, seconds=seconds))

    def fault_hits(self) -> Mapping[str, int]:
        """How many calls a fault hit, by cloud."""
        return {name: sum(self.server.clouds[name].faults.hits(kind) for kind in FaultKind) for name in CLOUDS}

    def clear_faults(self) -> None:
        """Remove all faults."""
        for name in CLOUDS:
            self.server.clouds[name].faults.clear()
            self.ledgers[name].release()

    def lose_one(self, dice: random.Random) -> None:
        """Kill a random machine, or preempt it when it is a spot machine."""
        alive = [(ledger, m) for ledger in self.ledgers.values() for m in ledger.everything() if m.life is Life.RUNNING]
        if alive:
            ledger, machine = dice.choice(alive)
            (ledger.preempt if machine.spot else ledger.kill)(machine.id)

    def running(self) -> Iterator[Agent]:
        """The agents of the running machines."""
        for machine in self.machines():
            if machine.life is Life.RUNNING and self.hypervisor.alive(machine.name):
                if machine.id not in self.agents:
                    self.agents[machine.id] = self._agent(machine)
                yield self.agents[machine.id]

    def _agent(self, machine: RentedMachine) -> Agent:
        index = len(self.agents) + 1
        where = f"{index // 250}.{index % 250 + 1}"
        peer = TailnetPeer(f"n{index}", machine.token, f"100.64.{where}", online=True)
        http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(f"127.3.{where}", 0)))
        cloud = next(name for name, ledger in self.ledgers.items() if machine in ledger.everything())
        instance_id = f"{machine.zone}/{machine.token}" if cloud == "gce" else machine.id
        return Agent(machine, f"127.3.{where}", peer, instance_id, http)

    async def whois(self, address: str) -> TailnetPeer:
        """The peer of a loopback address."""
        found = next((agent.peer for agent in self.agents.values() if agent.source == address), None)
        if found is None:
            raise TailnetError(f"nobody has {address}")
        return found

    def tailnet(self) -> TailnetView:
        """A tailnet in which the running machines are online."""
        return TailnetView("100.64.0.1", "head", True, (), {agent.peer.id: agent.peer for agent in self.running()})


class _Stage1:
    """User data that contains only the join token."""

    def __init__(self, tokens: MachineTokens) -> None:
        self._tokens = tokens

    async def user_data(self, machine: Record) -> UserData:
        token = self._tokens.join_token(machine.gang or machine.name).get_secret_value()
        return UserData(f"#!/bin/sh\n# join-token={token}\n", "a" * 64)

    def own_key(self, provider: str) -> bool:
        return False


class MungeKey:
    """A munge key that is never rotated."""

    @property
    def keys(self) -> MungeKey:
        return self

    def for_joining(self) -> SecretBytes:
        return SecretBytes(b"m" * 128)

    def note_report(self, machine: str, report: PollIn) -> None:
        """Do nothing."""


class Engine:
    """The daemon's core from its start to kill -9."""

    def __init__(self, clouds: FiveClouds, directory: Path) -> None:
        self.clouds, clock, settings = clouds, clouds.clock, clouds.settings()
        self._live = live = live_settings(settings)
        self.journal = Journal(directory / "journal.db")
        self.machine_store = MachineStore(self.journal, clock, lambda: None)
        self._tokens = MachineTokens.at(directory / "machines.key")
        guards = Guards(live, Metrics(), clock)
        loaded = load_providers(settings, clock.now, lambda _: None)
        self.providers = {name: guards.around(provider) for name, provider in loaded.items()}
        self.ledger = MachineLedger(
            self.journal, {name: rounding_of(one.capabilities) for name, one in self.providers.items()}, clock.now
        )
        self.sources = Sources(
            self.providers, clouds.slurm, NoKeys(), self.journal, live, clock, lambda: None,
        )  # fmt: skip
        self._queues = AgentQueues()
        self._settings = settings
        self._published: dict[str, str] = {}
        self._began = clock.now()
        machines = build_machines(
            live, self.machine_store, providers=self.providers, slurm=clouds.slurm, agents=self._queues, devices=None,
            user_data=_Stage1(self._tokens), desired=self.desired, snapshot=self._snapshot,
            list_again=self.sources.list_again, reports=NodeReports(),
        )  # fmt: skip
        self._nodes, self.executor, self.reconciler = machines.node_steps, machines.executor, machines.controller

    async def start(self) -> None:
        """Serve the node API and read all sources once."""
        head = HeadFacts("lab", "127.0.0.1:6817", 1, 1, 2, 2, (), 0.0)
        service = node_parts(
            self.machine_store,
            live=self._live,
            tokens=self._tokens,
            agents=self._queues,
            whois=self.clouds,
            tailnet=fresh(self.clouds.tailnet),
            munge_key=cast("Any", MungeKey()),
            node_steps=self._nodes,
            providers=self.providers,
            head=head,
        ).service
        self._api = NodeApi(service, poll_hold_s=0.0, clock=self.clouds.clock)
        port = await self._api.start("127.0.0.1", 0)
        self._base = f"http://127.0.0.1:{port}/v1"
        await self.sources.first_look()

    def desired(self) -> Desired:
        """The desired state, as the daemon computes it."""
        now, settings = self.clouds.clock.now(), self._settings
        policy = wanted.policy(settings.timing, settings.prices, may_change_devices=False, providers=self.providers)
        # The settings' deadline is in real seconds here, and the clock moves by rounds.
        policy = replace(policy, configure_timeout_s=300.0, launch_settle_s=LAG_S + 15, listing_lag_s=LAG_S + 15)
        pools = wanted.pools(settings, self.providers, now, shapes_fixed=False, able=self.providers)
        return Desired(
            "lab",
            pools,
            self.journal.targets(),
            policy,
            self.journal.cooldowns(now),
            self.journal.expired_cooldowns(now),
        )

    def _tailnet(self) -> Fresh[TailnetView]:
        return Fresh(self.clouds.tailnet(), self.clouds.clock.now(), self._began)

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            instances=sources_of(self.sources.listings), offers=sources_of(self.sources.offers),
            tailnet=self._tailnet(), slurm=self.sources.slurm.current,
            node_addrs=self._published,
        )  # fmt: skip

    async def round(self, *, offers: bool) -> None:
        """Read all sources, let the agents poll, and tick."""
        await self.clouds.server.host.settle()
        sources = [*self.sources.listings.values(), *(self.sources.offers.values() if offers else ())]
        await asyncio.gather(*(source.read_once() for source in sources))
        await self._agents()
        await self.sources.slurm.read_once()
        self.reconciler.tick()
        ends_s = time.monotonic() + STEPS_S
        while self.executor.in_flight and time.monotonic() < ends_s:
            await self._agents()
            await asyncio.sleep(0.01)

    async def _agents(self) -> None:
        agents = list(self.clouds.running())
        await asyncio.gather(*(agent.turn(self._base) for agent in agents))
        up = {agent.peer.tailnet_ip for agent in agents if agent.slurmd}
        self._published = self.clouds.slurm.publish(self.journal.machines(), up)
        machines = self.journal.machines()
        roster = {str(m.slot): m.tailnet_ip for m in machines if m.phase in IN_SLURM and m.tailnet_ip}
        self._queues.keep(roster, {m.name for m in machines}, {m.name for m in machines if m.facts is not None})

    async def kill(self) -> None:
        """Stop like kill -9: write nothing more. The clouds continue what they were asked for."""
        self.executor._launches.close()
        tasks = list(self.executor._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._api.stop()
        for provider in self.providers.values():
            await provider.aclose()
        self.journal.close()


class NoKeys:
    """No API of the tailnet."""

    async def key_record(self) -> None:
        """There is no auth key."""
