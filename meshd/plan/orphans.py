"""Machines that a cloud has and the journal does not know: adopt or end them. PURE.

When the journal is lost, all machines are unknown, and jobs may run on them. Whether a machine is the node of its slot
follows from two addresses: the NodeAddr of the slot's line, or the one that Slurm shows, and the tailnet address of the
machine. A machine that is the node of its slot is always adopted, even if no pool needs it: it then leaves like any
other, after its jobs.

When an older journal was restored, it has machines that ended since, and their slots have others by now: heirs. An heir
gets the slot as soon as the cloud shows that the machine before it has ended. Until then nothing is decided about
either, and their pool rents nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from meshd.model.desired import Desired, Pool
from meshd.model.ids import SlotName, parse_machine_name, slot_index
from meshd.model.machine import Machine, Phase
from meshd.model.observed import Fresh, Snapshot
from meshd.model.plan import AdoptOrphan, TerminateOrphan
from meshd.plan.liveness import ENDED, shown_alive, surely_ended
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
        holders: by slot, the machine that holds it.
        busy: the machines with a step in flight.
        ended_ids: (provider, instance id) of listed instances that are GONE in the journal. Those still listed after
            the grace period are ended again, and never adopted.
        late_ids: (provider, instance id) of listed instances with the name of a machine that is GONE or has another
            instance: a create call took effect late, or twice. They get no grace period, since no call is in flight
            for them and each is one too many.
    """

    ids: Collection[tuple[str, str]] = frozenset()
    names: Collection[str] = frozenset()
    holders: Mapping[str, Machine] = field(default_factory=dict)
    busy: Collection[str] = frozenset()
    ended_ids: Collection[tuple[str, str]] = frozenset()
    late_ids: Collection[tuple[str, str]] = frozenset()


@dataclass(slots=True)
class Orphans:
    """What becomes of all unknown instances.

    Attributes:
        steps: what to do now.
        waiting: the pools that may get one more machine by it later. They rent nothing until that is decided.
        succeeded: the machines whose slot has an heir: it is not theirs to free any more.
    """

    steps: list[AdoptOrphan | TerminateOrphan] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    succeeded: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Orphan:
    """An unknown instance.

    Attributes:
        slot: the slot that it was made for; None when its name has another form, or no pool has the slot.
        tailnet_ip: its tailnet address; "" when it is not on the tailnet; None when that is not known.
        node_addr: the NodeAddr of its slot's joined line; "" for a free slot.
        is_node_of_slot: it is the node of its slot: Slurm, or the slot's line, has its address.
        late: see `Known.late_ids`.
        old: it is older than the grace period, or needs none.
        off: nothing runs on it: its cloud says so, and neither the tailnet nor Slurm shows it at work.
    """

    instance: Instance
    pool: str
    slot: SlotName | None
    tailnet_ip: str | None
    node_addr: str
    is_node_of_slot: bool
    late: bool
    old: bool
    off: bool

    @property
    def name(self) -> str:
        """The machine's name; the cloud's id where it has none."""
        return self.instance.token or self.instance.id

    @property
    def why(self) -> str:
        """Why it is an orphan, for people."""
        return "a create call that had been given up has made it" if self.late else "the journal does not know it"


def orphans_of(
    desired: Desired,
    snapshot: Snapshot,
    known: Known,
    first_seen: Mapping[tuple[str, str], datetime],
    given: PlanInput,
) -> Orphans:
    """What to do about orphans. None is ended, or gets a free slot, before the grace period is over.

    Args:
        desired: pools, targets and the grace period.
        snapshot: the observed state; only fresh listings count.
        known: what the journal knows.
        first_seen: when meshd first saw each unknown instance. Its age counts from then if the cloud gives no time.
        given: the snapshot's index. While Slurm cannot be read, nothing is ended that could be a slot's node.
    """
    decided = _Decisions(desired, snapshot, known, given)
    unknown = [_orphan(desired, *one, known, given) for one in _unknown(desired, snapshot, known, first_seen, given)]
    # Of two machines that were made for one slot, the slot's node comes first.
    for orphan in sorted(unknown, key=lambda orphan: not orphan.is_node_of_slot):
        decided.look(orphan)
    return decided.found


def _unknown(
    desired: Desired,
    snapshot: Snapshot,
    known: Known,
    first_seen: Mapping[tuple[str, str], datetime],
    given: PlanInput,
) -> Iterator[tuple[Instance, bool]]:
    """The unknown instances that cost something, and whether each is old enough."""
    for provider, listing in snapshot.instances.items():
        for instance in listing.value if believed(listing, desired.policy, given.now) else ():
            key = (provider, instance.id)
            if key in known.ids or instance.state in _COSTS_NOTHING:
                continue
            seen = first_seen.get(key, given.now)
            # By a head's clock that is behind, it was launched later than it was seen.
            born = seen if key in known.ended_ids else min(instance.launched_at or seen, seen)
            old = (given.now - born).total_seconds() >= desired.policy.orphan_grace_s
            yield instance, old or key in known.late_ids


def _orphan(desired: Desired, instance: Instance, old: bool, known: Known, given: PlanInput) -> _Orphan:
    slot = parse_machine_name(desired.cluster, instance.token)
    pool = _pool_of(desired, slot) if slot else ""
    peer = given.peers.get(instance.token) if given.peers is not None else None
    tailnet_ip = None if given.peers is None else peer.tailnet_ip if peer else ""
    node_addr = given.node_addrs.get(slot, "") if slot else ""
    late = (instance.provider, instance.id) in known.late_ids
    node = given.slurm.nodes.get(slot) if given.slurm is not None and slot else None
    # The line may be older than Slurm's own state: an older journal's.
    shown = node is not None and node.cloud and bool(tailnet_ip) and node.node_addr == tailnet_ip
    is_node = shown or (bool(node_addr) and node_addr == tailnet_ip)
    at_work = (peer is not None and peer.online) or (is_node and node is not None and node.up)
    off = instance.state in _OFF and given.peers is not None and not at_work
    return _Orphan(
        instance, pool, slot if pool else None, tailnet_ip, node_addr, is_node and not off, late, old, off
    )  # fmt: skip


def _end(orphan: _Orphan, given: PlanInput) -> TerminateOrphan | None:
    """End it, unless it may be the node of a slot with jobs.

    While the tailnet cannot be read, also unless it may be the node of a slot that is up: a job may start there at any
    moment, and once the tailnet can be read again, the node is adopted and leaves like any other.
    """
    unknown = orphan.tailnet_ip is None and not orphan.off
    if orphan.slot is not None:
        if (orphan.is_node_of_slot or unknown) and _may_be_busy(orphan.slot, given):
            return None
        if unknown and _takes_jobs(orphan.slot, given):
            return None
    why = orphan.why if orphan.late else "it has this cluster's tag"
    return TerminateOrphan(orphan.instance.id, f"{why}, and no pool needs it", orphan.instance)


class _Decisions:
    """The decisions so far."""

    def __init__(self, desired: Desired, snapshot: Snapshot, known: Known, given: PlanInput) -> None:
        self._desired, self._snapshot, self._known, self._given = desired, snapshot, known, given
        self._adopted: set[str] = set()
        self.found = Orphans()

    def look(self, orphan: _Orphan) -> None:
        """Decide about one more."""
        ended = (orphan.instance.provider, orphan.instance.id) in self._known.ended_ids or orphan.off
        slot = orphan.slot
        if ended or orphan.instance.token in self._known.names or slot is None or slot in self._adopted:
            self._end(orphan)
            return
        holder = self._known.holders.get(slot)
        if not orphan.is_node_of_slot and not self._wanted(orphan):
            if holder is not None or not _may_be_busy(slot, self._given):
                self._end(orphan)
        elif holder is None:
            self._adopt_into_free(orphan, slot)
        elif orphan.late or shown_alive(holder, self._given):
            self._end(orphan)
        else:
            self._succeed(orphan, slot, holder)

    def _wanted(self, orphan: _Orphan) -> bool:
        target = self._desired.targets.get(orphan.pool)
        return target is None or target.gpus > 0

    def _end(self, orphan: _Orphan) -> None:
        step = _end(orphan, self._given) if orphan.old else None
        if step is not None:
            self.found.steps.append(step)

    def _adopt_into_free(self, orphan: _Orphan, slot: SlotName) -> None:
        if not orphan.old or (orphan.node_addr and not orphan.is_node_of_slot):
            # It is young; or first the machine that the slot's line belongs to is dealt with.
            self.found.waiting.add(orphan.pool)
            return
        has = "Slurm has it as its slot" if orphan.is_node_of_slot else "its slot is free"
        self._adopt(orphan, slot, has)

    def _succeed(self, orphan: _Orphan, slot: SlotName, holder: Machine) -> None:
        """Give it the slot of a machine that has ended, or of which nothing was rented; wait until that is known."""
        if holder.instance_id or holder.phase is Phase.REQUESTED:
            self.found.succeeded.add(holder.name)
        never = holder.phase is Phase.REQUESTED and holder.name not in self._known.busy
        if never or (holder.instance_id and surely_ended(holder, self._given)):
            fate = "was not rented" if never else "has ended"
            self._adopt(orphan, slot, f"{holder.name}, which had its slot, {fate}")
        else:
            self.found.waiting.add(orphan.pool)

    def _adopt(self, orphan: _Orphan, slot: SlotName, why: str) -> None:
        pool, holder = self._desired.pools[orphan.pool], self._known.holders.get(slot)
        self._adopted.add(slot)
        self.found.steps.append(
            AdoptOrphan(
                orphan.name,
                f"it has this cluster's name, {orphan.why}, and {why}",
                orphan.instance,
                _offer_of(self._snapshot, orphan.instance, pool),
                orphan.pool,
                slot,
                (orphan.tailnet_ip or "") if orphan.is_node_of_slot else "",
                # If it was rented for a target is not known. So it leaves when it is idle, and displaces none.
                by_queue=pool.from_queue,
                heir_of=holder.name if holder is not None else "",
            )
        )


def _may_be_busy(slot: str, given: PlanInput) -> bool:
    if given.slurm is None:
        return True
    node = given.slurm.nodes.get(slot)
    return slot in given.jobs or (node is not None and node.busy)


def _takes_jobs(slot: str, given: PlanInput) -> bool:
    node = given.slurm.nodes.get(slot) if given.slurm is not None else None
    return node is not None and node.up


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
