"""One life of meshd in a simulated world, from start to kill -9: the real planner, executor, policies and journal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from meshd.api.node_schema import HeartbeatIn, PathIn, PathsIn
from meshd.codes import EventKind
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.restored import RestoreWatch
from meshd.daemon.machines.wiring import build as build_machines
from meshd.daemon.nodes.admission import accept_join
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.daemon.observe.loop_lag import LoopLag
from meshd.errors import JoinRefused
from meshd.model.desired import Desired
from meshd.model.freeze import Freeze
from meshd.model.hardware import NodeFacts, NodeShape
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.observed import (
    Fresh,
    Observation,
    SlurmJob,
    SlurmNode,
    SlurmView,
    Snapshot,
    TailnetPeer,
    TailnetView,
    Unavailable,
)
from meshd.model.path import PathKind
from meshd.provider_api import Instance, Offer
from meshd.simulate.world import SimMachine, World
from meshd.store.freezes import Freezes
from meshd.store.journal import Journal
from meshd.store.restores import Restores

T = TypeVar("T")
FACTS = NodeFacts(NodeShape(8, 1, 1, 8, 1, 65536), (), "24.11.5", "1.102.5", "0.1.0", "debian 13", "x86_64", 0.0)
NOWHERE = "192.0.2.1"
"""The address of a slot without a machine."""
SETTLED_AFTER = 200
"""More turns of the event loop than the steps of one tick need."""


class Life:
    """What is between a start of meshd and its end.

    Args:
        world: all that is outside.
        path: of the journal.
        live: the settings.
        offers: by cloud, what can be rented.
    """

    def __init__(self, world: World, path: Path, live: LiveSettings, offers: Mapping[str, tuple[Offer, ...]]) -> None:
        self.world = world
        self.live = live
        self.offers = offers
        self.fresh_since: dict[str, datetime] = {}
        self.old_slurm: Fresh[SlurmView] | None = None
        self.journal = Journal(path)
        self.machine_store = MachineStore(self.journal, world.clock, lambda: None)
        self.reports = NodeReports()
        self.freezes = Freezes(self.journal, world.clock.now())
        self.restores = RestoreWatch(Restores(self.journal, world.clock.now()), live, world.clock)
        world.frozen = self.freezes.current is not None
        self.lag = LoopLag(world.clock)
        self.in_phase_s: dict[str, tuple[Phase, float]] = {}
        machines = build_machines(
            live, self.machine_store, providers=world.clouds(), slurm=world, agents=world, devices=world,
            user_data=world, desired=self.desired, snapshot=self.snapshot, list_again=lambda _: None,
            reports=self.reports, freeze=lambda: self.freezes.current, restored=self.restores.look,
        )  # fmt: skip
        self.executor, self.reconciler = machines.executor, machines.controller

    def desired(self) -> Desired:
        """What is desired now."""
        raise NotImplementedError

    def freeze(self) -> None:
        """Somebody freezes meshd."""
        self.freezes.freeze(Freeze(self.world.clock.now(), "root", "the cloud lies"))
        self.world.frozen = True

    def thaw(self) -> None:
        """Somebody ends that."""
        self.freezes.thaw("root", self.world.clock.now())
        self.world.frozen = False

    # -- what meshd observes --------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """What every source says now, unless it cannot be read, or its reader is slow."""
        world = self.world
        slurm = SlurmView(
            "24.11.5", dict(world.nodes),
            tuple(SlurmJob(job, "u", "h100", "RUNNING", (slot,)) for slot, (job, _) in world.jobs.items()),
        )  # fmt: skip
        tailnet_down = world.clock.t_s < world.tailnet_down_until_s
        seen: Fresh[SlurmView] | Unavailable = self.fresh("slurm", slurm, down=world.slurm_down)
        if world.chance(0.15) and self.old_slurm is not None:
            seen = self.old_slurm  # its reader is slow, or stuck
        elif isinstance(seen, Fresh):
            self.old_slurm = seen
        return Snapshot(
            instances=self.listings(),
            offers=self.offered(),
            tailnet=self.lag.heard(self.fresh("tailnet", self.tailnet(), down=tailnet_down)),
            slurm=seen,
            node_addrs=dict(world.published),
            reports=dict(self.reports.current),
        )

    def listings(self) -> dict[str, Observation[tuple[Instance, ...]]]:
        """By cloud, its machines."""
        now, names = self.world.clock.now(), list(self.offers)
        listed: dict[str, Observation[tuple[Instance, ...]]] = {}
        for name in names:
            if self.world.chance(0.1):
                listed[name] = Unavailable("fault", now)
            else:
                listed[name] = Fresh(self.world.listing(), now)
        return listed

    def offered(self) -> dict[str, Observation[tuple[Offer, ...]]]:
        """By cloud, what can be rented."""
        now = self.world.clock.now()
        return {
            name: Unavailable("fault", now) if self.world.chance(0.1) else Fresh(offers, now)
            for name, offers in self.offers.items()
        }

    def tailnet(self) -> TailnetView:
        """The machines that have turned up."""
        peers = {
            m.id: TailnetPeer(m.id, m.token, m.ip, online=m.ended_s is None)
            for m in self.world.machines.values()
            if m.ip
        }
        return TailnetView("100.64.0.1", "head", True, (), peers)

    def fresh(self, name: str, value: T, *, down: bool) -> Fresh[T] | Unavailable:
        """The source's word, with since when it speaks without a break."""
        now = self.world.clock.now()
        if down:
            self.fresh_since.pop(name, None)
            return Unavailable("down", now)
        return Fresh(value, now, self.fresh_since.setdefault(name, now))

    # -- what machines do by themselves ---------------------------------------------------------------------------

    def agents_act(self) -> None:
        """Machines appear on the tailnet, join, prove munge, speak."""
        world = self.world
        for m in world.machines.values():
            if m.ended_s is not None or not m.boots or world.clock.t_s < m.born_s + m.boot_s:
                continue
            if not m.ip:
                m.ip = f"100.64.{world.next_ip // 250}.{world.next_ip % 250 + 1}"
                world.next_ip += 1
            record = self.journal.machine(m.token)
            if world.clock.t_s < world.tailnet_down_until_s:
                continue
            if record is not None and record.facts is not None and record.phase in IN_SLURM:
                self.hear(m, record)
            if record is None or record.facts is not None or world.chance(0.2):
                continue
            try:
                peer = TailnetPeer(m.id, m.token, m.ip, online=True)
                accept_join(self.machine_store, record, peer, self.facts(record))
                self.machine_store.change(record.name, EventKind.MUNGE, "proved", munge_ok=True)
            except JoinRefused:
                continue
        if not world.chance(0.3):
            self.publish()

    def hear(self, m: SimMachine, record: Machine) -> None:
        """A machine's agent speaks."""
        world = self.world
        self.journal.note(replace(record, heartbeat_at=world.clock.now()))
        jobs = world.jobs_at(m)
        if world.relays:
            m.relayed = world.faults and world.fates.random() < world.relays
        head = PathIn(kind=PathKind.DERP if m.relayed else PathKind.DIRECT, rtt_s=0.001, age_s=1.0)
        paths = PathsIn(head=head)
        beat = HeartbeatIn(slurmd_alive=m.slurmd, munged_alive=True, jobs=jobs, paths=paths)
        self.reports.heard(record, beat, world.clock.now())

    def facts(self, machine: Machine) -> NodeFacts:
        """What a machine tells of itself as it joins."""
        return FACTS

    def publish(self) -> None:
        """What the publisher does: the joined lines into Slurm."""
        world = self.world
        lines: dict[str, str] = {
            x.slot: x.tailnet_ip
            for x in self.journal.machines()
            if x.phase in IN_SLURM and x.tailnet_ip and not x.left_slurm
        }
        for slot in sorted({*lines, *world.published}):
            node = world.nodes.get(slot, SlurmNode(slot, NOWHERE, frozenset({"DOWN"})))
            if slot not in lines and (slot in world.jobs or node.states == {"IDLE"}):
                return  # the publisher refuses to free a slot that is at work or open to jobs
            if slot in lines and world.published.get(slot, lines[slot]) != lines[slot] and slot in world.jobs:
                return  # nor does it give a slot at work to another machine
            address = lines.get(slot, NOWHERE)
            world.nodes[slot] = node if node.node_addr == address else replace(node, node_addr=address)
        world.published = lines

    async def settle(self) -> None:
        """Let every step in flight end, or the daemon die."""
        for _ in range(SETTLED_AFTER):
            await asyncio.sleep(0)
            if self.world.crashed or self.executor.at_rest:
                return

    async def kill(self) -> None:
        """Kill -9: nothing is written any more."""
        await self.executor.abandon()
        self.journal.close()
        self.world.crashed = False
