"""What a tick has seen, as the planner looks things up in it. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from meshd.model.desired import Cooldown, Policy
from meshd.model.machine import Machine
from meshd.model.observed import Fresh, Observation, SlurmNode, SlurmView, Snapshot, TailnetPeer, TailnetView
from meshd.plan.ipv4 import head_without_ipv4
from meshd.plan.sight import LONG_AGO, Sight, believed
from meshd.provider_api import Instance, InstanceState


@dataclass(frozen=True, slots=True)
class World:
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
        sight: the same for the verdict on single nodes, with what their agents report.
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
    published: Mapping[str, str]
    dead_key: str
    no_ipv4: str
    blocks: Mapping[str, Cooldown]
    sight: Sight

    @staticmethod
    def of(snapshot: Snapshot, policy: Policy, now: datetime, blocks: Mapping[str, Cooldown]) -> World:
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
        return World(
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
            published=snapshot.published,
            dead_key=snapshot.dead_key,
            no_ipv4=head_without_ipv4(snapshot.tailnet.value) if isinstance(snapshot.tailnet, Fresh) else "",
            blocks=blocks,
            sight=Sight.of(snapshot, policy, now),
        )

    def instance(self, machine: Machine) -> Instance | None:
        """The machine in its cloud's listing."""
        return self.by_id.get((machine.provider, machine.instance_id))

    def node(self, machine: Machine) -> SlurmNode | None:
        """The machine's slot in Slurm, if it is this machine that stands behind it."""
        node = self.slurm.nodes.get(machine.slot) if self.slurm else None
        return node if node and node.address == machine.tailnet_ip else None

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
