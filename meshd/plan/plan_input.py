"""What the planner and the verdicts on nodes see of a snapshot: what is fresh enough to be believed. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeGuard, TypeVar

from meshd.model.cooldown import Cooldown, CooldownKey
from meshd.model.desired import Policy
from meshd.model.machine import Machine
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
    """Whether this is a word, and one of now: a stuck reader or a clock that was set makes it none."""
    return isinstance(seen, Fresh) and abs((now - seen.at).total_seconds()) <= policy.stale_after_s


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Slurm, tailnet and agents as they can be believed at one moment.

    Attributes:
        slurm: None when Slurm did not answer, or long ago; else it was read at slurm_at.
        tailnet: None when the head itself is not well on the tailnet: it hears nobody then.
        tailnet_since: since when the head hears the tailnet without a break; silence counts from there.
        reports: what each agent said last, by machine; a machine is missing until it has spoken to this meshd.
    """

    now: datetime
    policy: Policy
    slurm: SlurmView | None = None
    slurm_at: datetime | None = None
    tailnet: TailnetView | None = None
    tailnet_since: datetime = LONG_AGO
    reports: Mapping[str, AgentReport] = field(default_factory=dict)

    @staticmethod
    def of(snapshot: Snapshot, policy: Policy, now: datetime) -> ClusterView:
        """What this snapshot shows."""
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
        )

    def node(self, machine: Machine) -> SlurmNode | None:
        """The machine's slot in Slurm, if it is this machine that stands behind it."""
        node = self.slurm.nodes.get(machine.slot) if self.slurm else None
        return node if node and node.node_addr == machine.tailnet_ip else None

    def peer(self, machine: Machine) -> TailnetPeer | None:
        """The machine's device on the tailnet."""
        return self.tailnet.peers.get(machine.tailnet_id) if self.tailnet and machine.tailnet_id else None

    def report(self, machine: Machine) -> AgentReport | None:
        """What its agent said last."""
        return self.reports.get(machine.name)


@dataclass(frozen=True, slots=True)
class PlanInput:
    """A snapshot, indexed once per tick so that each machine is looked up in constant time.

    Attributes:
        by_id, by_token: of the providers whose listing is fresh.
        listed_at: when each provider's listing was read; absent when it is not available.
        peers: by hostname; None when the tailnet's word cannot be believed now.
        devices: the stable ids of all devices; None as with `peers`.
        peers_since: since when it can be believed without a break; deadlines that wait for its word count from there.
        slurm: None when Slurm did not answer, or long ago; else it was read at slurm_at.
        slurm_since: since when it answers without a break.
        jobs: by slot, the ids of its jobs.
        no_ipv4: why the tailnet's addresses cannot be used for Slurm; "" when they can.
        view: the same for the verdict on single nodes, with what their agents report.
    """

    now: datetime
    policy: Policy
    by_id: Mapping[tuple[str, str], Instance]
    by_token: Mapping[tuple[str, str], tuple[Instance, ...]]
    listed_at: Mapping[str, datetime]
    peers: Mapping[str, TailnetPeer] | None
    devices: frozenset[str] | None
    peers_since: datetime | None
    slurm: SlurmView | None
    slurm_at: datetime | None
    slurm_since: datetime | None
    jobs: Mapping[str, tuple[str, ...]]
    node_addrs: Mapping[str, str]
    dead_key: str
    no_ipv4: str
    cooldowns: Mapping[CooldownKey, Cooldown]
    view: ClusterView

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
        for job in slurm.jobs if slurm else ():
            for slot in job.nodes:
                jobs[slot] = (*jobs.get(slot, ()), job.id)
        return PlanInput(
            now=now,
            policy=policy,
            by_id=by_id,
            by_token=by_token,
            listed_at=listed_at,
            peers=peers,
            devices=_devices(snapshot) if peers is not None else None,
            peers_since=_since(snapshot.tailnet) if peers is not None else None,
            slurm=slurm,
            slurm_at=snapshot.slurm.at if slurm is not None and isinstance(snapshot.slurm, Fresh) else None,
            slurm_since=_since(snapshot.slurm) if slurm is not None else None,
            jobs=jobs,
            node_addrs=snapshot.node_addrs,
            dead_key=snapshot.dead_key,
            no_ipv4=head_without_ipv4(snapshot.tailnet.value) if isinstance(snapshot.tailnet, Fresh) else "",
            cooldowns=cooldowns,
            view=ClusterView.of(snapshot, policy, now),
        )

    def instance(self, machine: Machine) -> Instance | None:
        """The machine in its cloud's listing."""
        return self.by_id.get((machine.provider, machine.instance_id))

    def node(self, machine: Machine) -> SlurmNode | None:
        """The machine's slot in Slurm, if it is this machine that stands behind it."""
        node = self.slurm.nodes.get(machine.slot) if self.slurm else None
        return node if node and node.node_addr == machine.tailnet_ip else None

    def peer(self, machine: Machine) -> TailnetPeer | None:
        """The machine's device on the tailnet."""
        return self.peers.get(machine.name) if self.peers is not None else None

    def silence_s(self, machine: Machine) -> float:
        """How long ago its agent spoke; since it was made, when it never did."""
        return (self.now - (machine.heartbeat_at or machine.created_at)).total_seconds()

    def idle(self, machine: Machine) -> bool:
        """Surely no job runs on the machine's slot. False also means: not known."""
        if self.slurm is None:
            return False
        node = self.slurm.nodes.get(machine.slot)
        return not self.jobs.get(machine.slot) and (node is None or not node.busy)


def _since(seen: Observation[SlurmView] | Observation[TailnetView]) -> datetime | None:
    return (seen.since or LONG_AGO) if isinstance(seen, Fresh) else None


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
