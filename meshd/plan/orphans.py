"""Machines that a cloud has and the journal does not know: adopt or end them. PURE.

When the journal is lost, all machines are unknown, and jobs may run on them. Whether a machine is the node of its slot
follows from two addresses: the NodeAddr of the slot's line, and the tailnet address of the machine. A machine that is
the node of its slot is always adopted, even if no pool needs it: it then leaves like any other, after its jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from meshd.model.desired import Desired, Pool
from meshd.model.ids import SlotName, parse_machine_name, slot_index
from meshd.model.observed import Fresh, Snapshot
from meshd.model.plan import AdoptOrphan, TerminateOrphan
from meshd.plan.liveness import ENDED
from meshd.plan.plan_input import PlanInput, believed
from meshd.provider_api import Instance, InstanceState, Offer

_OFF = frozenset({InstanceState.STOPPED, InstanceState.FAILED})
_COSTS_NOTHING = (ENDED | {InstanceState.TERMINATING}) - _OFF
"""Such instances need not be ended. STOPPED and FAILED ones do: they still cost money."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the journal knows of machines and of listed instances.

    Attributes:
        ids: (provider, instance id) of the machines that are not GONE.
        names: their names.
        slots: the slots that they hold.
        ended_ids: (provider, instance id) of listed instances that are GONE in the journal. Those still listed after
            the grace period are ended again, and never adopted.
        late_ids: (provider, instance id) of listed instances with the name of a machine that is GONE or has another
            instance: a create call took effect late, or twice. They get no grace period, since no call is in flight
            for them and each is one too many.
    """

    ids: Collection[tuple[str, str]] = frozenset()
    names: Collection[str] = frozenset()
    slots: Collection[str] = frozenset()
    ended_ids: Collection[tuple[str, str]] = frozenset()
    late_ids: Collection[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class _Orphan:
    """An unknown instance.

    Attributes:
        slot: the slot that it was made for; None when its name has another form, or no pool has the slot.
        tailnet_ip: its tailnet address; "" when it is not on the tailnet; None when that is not known.
        node_addr: the NodeAddr of its slot's joined line; "" for a free slot.
        late: see `Known.late_ids`.
        off: nothing runs on it: its cloud says so, and neither the tailnet nor Slurm shows it at work.
    """

    instance: Instance
    pool: str
    slot: SlotName | None
    tailnet_ip: str | None
    node_addr: str
    late: bool
    off: bool

    @property
    def is_node_of_slot(self) -> bool:
        """Whether it is the node of its slot."""
        return bool(self.node_addr) and self.tailnet_ip == self.node_addr and not self.off

    @property
    def name(self) -> str:
        """The machine's name; the cloud's id where it has none."""
        return self.instance.token or self.instance.id

    @property
    def why(self) -> str:
        """Why it is an orphan, for people."""
        return "a create call that had been given up has made it" if self.late else "the journal does not know it"


def orphan_steps(
    desired: Desired,
    snapshot: Snapshot,
    known: Known,
    first_seen: Mapping[tuple[str, str], datetime],
    given: PlanInput,
) -> Iterator[AdoptOrphan | TerminateOrphan]:
    """The steps for orphans that are older than the grace period.

    Args:
        desired: pools, targets and the grace period.
        snapshot: the observed state; only fresh listings count.
        known: what the journal knows.
        first_seen: when meshd first saw each unknown instance. Its age counts from then if the cloud gives no time.
        given: the snapshot's index. While Slurm cannot be read, nothing is ended that could be a slot's node.
    """
    taken = set(known.slots)
    unknown = _unknown(desired, snapshot, known, first_seen, given)
    orphans = [_orphan(desired, instance, known, given) for instance in unknown]
    # Of two machines that were made for one slot, the slot's node comes first.
    for orphan in sorted(orphans, key=lambda orphan: not orphan.is_node_of_slot):
        ended = (orphan.instance.provider, orphan.instance.id) in known.ended_ids or orphan.off
        doubled = orphan.instance.token in known.names
        step = _end(orphan, given) if ended or doubled else _step(desired, snapshot, orphan, taken, given)
        if isinstance(step, AdoptOrphan):
            taken.add(step.slot)
        if step is not None:
            yield step


def _unknown(
    desired: Desired,
    snapshot: Snapshot,
    known: Known,
    first_seen: Mapping[tuple[str, str], datetime],
    given: PlanInput,
) -> Iterator[Instance]:
    for provider, listing in snapshot.instances.items():
        for instance in listing.value if believed(listing, desired.policy, given.now) else ():
            key = (provider, instance.id)
            if key in known.ids or instance.state in _COSTS_NOTHING:
                continue
            seen = first_seen.get(key, given.now)
            # By a head's clock that is behind, it was launched later than it was seen.
            born = seen if key in known.ended_ids else min(instance.launched_at or seen, seen)
            old = (given.now - born).total_seconds() >= desired.policy.orphan_grace_s
            if old or key in known.late_ids:
                yield instance


def _orphan(desired: Desired, instance: Instance, known: Known, given: PlanInput) -> _Orphan:
    slot = parse_machine_name(desired.cluster, instance.token)
    pool = _pool_of(desired, slot) if slot else ""
    peer = given.peers.get(instance.token) if given.peers is not None else None
    tailnet_ip = None if given.peers is None else peer.tailnet_ip if peer else ""
    node_addr = given.node_addrs.get(slot, "") if slot else ""
    late = (instance.provider, instance.id) in known.late_ids
    node = given.slurm.nodes.get(slot) if given.slurm is not None and slot and node_addr == tailnet_ip else None
    at_work = (peer is not None and peer.online) or (node is not None and node.up)
    off = instance.state in _OFF and given.peers is not None and not at_work
    return _Orphan(instance, pool, slot if pool else None, tailnet_ip, node_addr, late, off)


def _end(orphan: _Orphan, given: PlanInput) -> TerminateOrphan | None:
    """End it, unless it may be the node of a slot with jobs."""
    behind = orphan.is_node_of_slot or (orphan.tailnet_ip is None and not orphan.off)
    if orphan.slot is not None and behind and _may_be_busy(orphan.slot, given):
        return None
    why = orphan.why if orphan.late else "it has this cluster's tag"
    return TerminateOrphan(orphan.instance.id, f"{why}, and no pool needs it", orphan.instance)


def _step(
    desired: Desired, snapshot: Snapshot, orphan: _Orphan, taken: set[str], given: PlanInput
) -> AdoptOrphan | TerminateOrphan | None:
    instance, slot, pool = orphan.instance, orphan.slot, orphan.pool
    name = orphan.name
    if slot is None or slot in taken:
        return _end(orphan, given)
    offer = _offer_of(snapshot, instance, desired.pools[pool])
    if orphan.is_node_of_slot:
        reason = f"it has this cluster's name, {orphan.why}, and Slurm has it as its slot"
        return AdoptOrphan(name, reason, instance, offer, pool, slot, orphan.node_addr)
    if orphan.node_addr:
        return None  # first the machine that the slot's line belongs to is dealt with
    target = desired.targets.get(pool)
    if target is None or target.gpus > 0:
        reason = f"it has this cluster's name, {orphan.why}, and its slot is free"
        return AdoptOrphan(name, reason, instance, offer, pool, slot)
    return None if _may_be_busy(slot, given) else _end(orphan, given)


def _may_be_busy(slot: str, given: PlanInput) -> bool:
    if given.slurm is None:
        return True
    node = given.slurm.nodes.get(slot)
    return slot in given.jobs or (node is not None and node.busy)


def _pool_of(desired: Desired, slot: SlotName) -> str:
    for pool in desired.pools.values():
        index = slot_index(pool.name, slot)
        if index is not None and 1 <= index <= pool.max_nodes:
            return pool.name
    return ""


def _offer_of(snapshot: Snapshot, instance: Instance, pool: Pool) -> Offer:
    """The offer that the instance was rented by: one of the same type, if possible in the same region.

    A type that is not offered any more counts as the pool's smallest machine, at the cloud's price.
    """
    seen = snapshot.offers.get(instance.provider)
    known = [o for o in (seen.value if isinstance(seen, Fresh) else ()) if o.instance_type == instance.instance_type]
    nearest = min(
        known, key=lambda o: (o.region != instance.region, o.spot != instance.spot, o.usd_per_hour, o.key), default=None
    )
    if nearest is not None and (nearest.region, nearest.spot) == (instance.region, instance.spot):
        return nearest
    usd = instance.usd_per_hour
    if nearest is not None:
        usd = nearest.usd_per_hour if usd is None else usd
        return replace(nearest, region=instance.region, zone="", spot=instance.spot, usd_per_hour=usd)
    return Offer(
        provider=instance.provider, region=instance.region, zone="", instance_type=instance.instance_type,
        gpu=pool.gpu, gpus=pool.gpus_per_node, gpu_memory_gib=0,
        vcpus=0, memory_mib=0, usd_per_hour=usd or 0.0, spot=instance.spot,
    )  # fmt: skip
