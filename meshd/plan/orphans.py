"""Machines that the cloud has and the journal does not know. PURE."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

from meshd.model.desired import Desired
from meshd.model.ids import SlotName, parse_machine_name, slot_index
from meshd.model.observed import Fresh, Snapshot
from meshd.model.plan import AdoptOrphan, Step, TerminateOrphan
from meshd.plan.lifecycle import ENDED
from meshd.provider_api import Instance, InstanceState, Offer


def orphan_steps(
    desired: Desired,
    snapshot: Snapshot,
    known_ids: Collection[tuple[str, str]],
    taken_slots: Collection[str],
    first_seen: Mapping[tuple[str, str], datetime],
    busy_slots: Collection[str] | None,
    now: datetime,
) -> Iterator[Step]:
    """What to do with each orphan that is older than the grace period.

    Args:
        desired: pools, targets and the grace period.
        snapshot: what was observed; only listings that are fresh are looked at.
        known_ids: (provider, instance id) of all machines that the journal has, and of those being made.
        taken_slots: slots that hold a machine.
        first_seen: when meshd first saw each unknown instance: its age when the cloud tells none.
        busy_slots: slots with a running job; None when Slurm cannot say, and then nothing is terminated that could
            be behind a slot.
        now: UTC.
    """
    taken = set(taken_slots)
    for provider, listing in snapshot.instances.items():
        if not isinstance(listing, Fresh):
            continue
        for instance in listing.value:
            if (provider, instance.id) in known_ids or instance.state in ENDED:
                continue
            if instance.state is InstanceState.TERMINATING:
                continue
            born = instance.launched_at or first_seen.get((provider, instance.id), now)
            if (now - born).total_seconds() < desired.policy.orphan_grace_s:
                continue
            step = _orphan_step(desired, snapshot, instance, taken, busy_slots)
            if isinstance(step, AdoptOrphan):
                taken.add(step.slot)
            if step is not None:
                yield step


def _orphan_step(
    desired: Desired, snapshot: Snapshot, instance: Instance, taken: set[str], busy_slots: Collection[str] | None
) -> Step | None:
    name = instance.token or instance.id
    slot = parse_machine_name(desired.cluster, instance.token)
    pool = _pool_of(desired, slot) if slot else ""
    wanted = pool and slot not in taken and (desired.targets.get(pool) is None or desired.targets[pool].gpus > 0)
    if slot and pool and wanted:
        reason = "it bears our name, the journal does not know it, and its slot is free"
        return AdoptOrphan(name, reason, instance, _offer_of(snapshot, instance), pool, slot)
    if slot and slot not in taken and (busy_slots is None or slot in busy_slots):
        return None  # a job may be on it
    return TerminateOrphan(name, "it bears our tag, and nobody wants it", instance)


def _pool_of(desired: Desired, slot: SlotName) -> str:
    for pool in desired.pools.values():
        index = slot_index(pool.name, slot)
        if index is not None and 1 <= index <= pool.max_nodes:
            return pool.name
    return ""


def _offer_of(snapshot: Snapshot, instance: Instance) -> Offer:
    """What the instance was rented as: by its type, or else a bare offer that says only what the cloud tells."""
    offers = snapshot.offers.get(instance.provider)
    for offer in offers.value if isinstance(offers, Fresh) else ():
        if (offer.instance_type, offer.region, offer.spot) == (instance.instance_type, instance.region, instance.spot):
            return offer
    return Offer(
        provider=instance.provider, region=instance.region, zone="", instance_type=instance.instance_type, gpu="",
        gpus=0, gpu_memory_gib=0, vcpus=0, memory_mib=0, usd_per_hour=instance.usd_per_hour or 0.0, spot=instance.spot,
    )  # fmt: skip
