"""The input of planner and verdicts: what of a snapshot is fresh enough to be believed, and indexed. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeGuard, TypeVar

from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Policy
from meshd.model.machine import Machine
from meshd.model.node_settings import WantedSection
from meshd.model.observed import (
    AgentReport,
    Fresh,
    Observation,
    SlurmNode,
    SlurmView,
    Snapshot,
    TailnetPeer,
    TailnetView,
)
from meshd.plan.devices import head_without_ipv4
from meshd.provider_api import Instance, InstanceState

T = TypeVar("T")

LONG_AGO = datetime.min.replace(tzinfo=UTC)


def believed(seen: Observation[T], policy: Policy, now: datetime) -> TypeGuard[Fresh[T]]:
    """Whether the source could be read, and recently: not by a stuck reader, nor before the clock was set."""
    return isinstance(seen, Fresh) and abs((now - seen.at).total_seconds()) <= policy.stale_after_s


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Slurm, the tailnet and the agents' reports, as far as they can be believed. It needs no index, so it is cheap.

    Attributes:
        slurm: as read at `slurm_at`; None when Slurm did not answer recently.
        tailnet: None while the head itself is off the tailnet, where it hears no machine.
        tailnet_since: since when the head has heard the tailnet without a break; silence counts from then.
        reports: by machine, the last report of its agent. A machine is missing until it has called this meshd.
        sections: see Snapshot.
    """

    now: datetime
    policy: Policy
    slurm: SlurmView | None = None
    slurm_at: datetime | None = None
    tailnet: TailnetView | None = None
    tailnet_since: datetime = LONG_AGO
    reports: Mapping[str, AgentReport] = field(default_factory=dict)
    sections: Mapping[str, Mapping[str, WantedSection]] = field(default_factory=dict)

    @staticmethod
    def of(snapshot: Snapshot, policy: Policy, now: datetime) -> ClusterView:
        """What this snapshot shows at `now`."""
        slurm, tailnet = snapshot.slurm, snapshot.tailnet
        known = believed(slurm, policy, now)
        heard = isinstance(tailnet, Fresh) and tailnet.value.healthy
        return ClusterView(
            now=now,
            policy=policy,
            slurm=slurm.value if known and isinstance(slurm, Fresh) else None,
            slurm_at=slurm.at if known and isinstance(slurm, Fresh) else None,
            tailnet=tailnet.value if heard and isinstance(tailnet, Fresh) else None,
            tailnet_since=(tailnet.since or LONG_AGO) if isinstance(tailnet, Fresh) else LONG_AGO,
            reports=snapshot.reports,
            sections=snapshot.sections,
        )

    def node(self, machine: Machine) -> SlurmNode | None:
        """The machine's node in Slurm; None when the slot's line has another machine's address."""
        node = self.slurm.nodes.get(machine.slot) if self.slurm else None
        return node if node and node.node_addr == machine.tailnet_ip else None

    def peer(self, machine: Machine) -> TailnetPeer | None:
        """The machine's device on the tailnet."""
        return self.tailnet.peers.get(machine.tailnet_id) if self.tailnet and machine.tailnet_id else None

    def report(self, machine: Machine) -> AgentReport | None:
        """Its agent's last report."""
        return self.reports.get(machine.name)


@dataclass(frozen=True, slots=True)
class PlanInput:
    """A snapshot, indexed once in each tick so that a machine is looked up in constant time.

    Attributes:
        by_id, by_token: instances of the providers whose listing is fresh.
        listed_at: when each fresh listing was read, by provider.
        peers: by hostname; None while the tailnet cannot be believed.
        devices: the stable ids of all devices; None while the tailnet cannot be believed.
        namesakes: for a hostname that several devices have, their stable ids.
        peers_since: since when it has been believed without a break. Deadlines that wait for a device count from then.
        slurm: as read at `slurm_at`; None when Slurm did not answer recently.
        slurm_since: since when it has answered without a break.
        jobs: by slot, the ids of the jobs that run there.
        configuring_jobs: by slot, the ids of the CONFIGURING jobs that have it. None of their processes runs anywhere.
        node_addrs, settable_addrs, dead_key: see Snapshot.
        no_ipv4: why the tailnet cannot carry the cluster; "" when it can.
        view: what the verdicts on single nodes need.
        orders_guarded: orders wait for their turn.
    """

    now: datetime
    policy: Policy
    by_id: Mapping[tuple[str, str], Instance]
    by_token: Mapping[tuple[str, str], tuple[Instance, ...]]
    listed_at: Mapping[str, datetime]
    peers: Mapping[str, TailnetPeer] | None
    devices: frozenset[str] | None
    namesakes: Mapping[str, tuple[str, ...]]
    peers_since: datetime | None
    slurm: SlurmView | None
    slurm_at: datetime | None
    slurm_since: datetime | None
    jobs: Mapping[str, tuple[str, ...]]
    configuring_jobs: Mapping[str, tuple[str, ...]]
    node_addrs: Mapping[str, str]
    settable_addrs: Mapping[str, str]
    dead_key: str
    no_ipv4: str
    cooldowns: Mapping[CooldownKey, Cooldown]
    view: ClusterView
    orders_guarded: bool = False

    @staticmethod
    def of(snapshot: Snapshot, policy: Policy, now: datetime, cooldowns: Mapping[CooldownKey, Cooldown]) -> PlanInput:
        """Index a snapshot."""
        by_id: dict[tuple[str, str], Instance] = {}
        by_token: dict[tuple[str, str], tuple[Instance, ...]] = {}
        listed_at: dict[str, datetime] = {}
        for provider, listing in snapshot.instances.items():
            if believed(listing, policy, now):
                listed_at[provider] = listing.at
                for instance in listing.value:
                    by_id[provider, instance.id] = instance
                    if instance.token and instance.state is not InstanceState.GONE:
                        key = (provider, instance.token)
                        by_token[key] = (*by_token.get(key, ()), instance)
        slurm = snapshot.slurm.value if believed(snapshot.slurm, policy, now) else None
        peers = _peers(snapshot)
        jobs: dict[str, tuple[str, ...]] = {}
        configuring_jobs: dict[str, tuple[str, ...]] = {}
        for job in slurm.jobs if slurm else ():
            of = configuring_jobs if job.configuring else jobs
            for slot in job.nodes:
                of[slot] = (*of.get(slot, ()), job.id)
        return PlanInput(
            now=now,
            policy=policy,
            by_id=by_id,
            by_token=by_token,
            listed_at=listed_at,
            peers=peers,
            devices=_devices(snapshot) if peers is not None else None,
            namesakes=_namesakes(snapshot),
            peers_since=_since(snapshot.tailnet) if peers is not None else None,
            slurm=slurm,
            slurm_at=snapshot.slurm.at if slurm is not None and isinstance(snapshot.slurm, Fresh) else None,
            slurm_since=_since(snapshot.slurm) if slurm is not None else None,
            jobs=jobs,
            configuring_jobs=configuring_jobs,
            node_addrs=snapshot.node_addrs,
            settable_addrs=snapshot.settable_addrs,
            dead_key=snapshot.dead_key,
            no_ipv4=head_without_ipv4(snapshot.tailnet.value) if isinstance(snapshot.tailnet, Fresh) else "",
            cooldowns=cooldowns,
            view=ClusterView.of(snapshot, policy, now),
        )

    def instance(self, machine: Machine) -> Instance | None:
        """The machine in its cloud's listing."""
        return self.by_id.get((machine.provider, machine.instance_id))

    def node(self, machine: Machine) -> SlurmNode | None:
        """The machine's node in Slurm; None when the slot's line has another machine's address."""
        node = self.slurm.nodes.get(machine.slot) if self.slurm else None
        return node if node and node.node_addr == machine.tailnet_ip else None

    def cloud(self, machine: Machine) -> bool:
        """Whether Slurm's power saving drives the machine's slot, whatever address the slot has."""
        node = self.slurm.nodes.get(machine.slot) if self.slurm else None
        return node is not None and node.cloud

    def peer(self, machine: Machine) -> TailnetPeer | None:
        """The machine's device on the tailnet."""
        return self.peers.get(machine.name) if self.peers is not None else None

    def devices_named(self, hostname: str) -> tuple[str, ...]:
        """The stable ids of all devices with this hostname; () while the tailnet cannot be believed."""
        if self.peers is None or hostname not in self.peers:
            return ()
        return self.namesakes.get(hostname, (self.peers[hostname].id,))

    def silence_s(self, machine: Machine) -> float:
        """How long its agent has been silent; since the machine was requested when it never called."""
        return (self.now - (machine.heartbeat_at or machine.created_at)).total_seconds()

    def idle(self, machine: Machine) -> bool:
        """Whether it is known that no job runs on the machine's slot, nor may start there at any moment.

        A job that holds a slot whose node has not registered yet can do neither.
        """
        if self.slurm is None:
            return False
        node = self.slurm.nodes.get(machine.slot)
        return not self.jobs.get(machine.slot) and (node is None or not node.busy)


def _since(seen: Observation[SlurmView] | Observation[TailnetView]) -> datetime | None:
    return (seen.since or LONG_AGO) if isinstance(seen, Fresh) else None


def _namesakes(snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for peer in snapshot.tailnet.value.peers.values() if isinstance(snapshot.tailnet, Fresh) else ():
        found[peer.hostname] = (*found.get(peer.hostname, ()), peer.id)
    return {hostname: ids for hostname, ids in found.items() if len(ids) > 1}


def _peers(snapshot: Snapshot) -> dict[str, TailnetPeer] | None:
    if not isinstance(snapshot.tailnet, Fresh) or not snapshot.tailnet.value.healthy:
        return None
    view: TailnetView = snapshot.tailnet.value
    peers: dict[str, TailnetPeer] = {}
    for peer in view.peers.values():
        if peer.hostname not in peers or peer.online:
            peers[peer.hostname] = peer
    return peers


def _devices(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(snapshot.tailnet.value.peers) if isinstance(snapshot.tailnet, Fresh) else frozenset()
