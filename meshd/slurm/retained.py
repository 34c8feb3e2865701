"""PURE: partitions and slots that stay in nodes.conf without being in the settings: a job or reservation names them.

Facts, measured with 22.05.8 and 24.11.5. After a reconfigure without a partition or node, slurmctld sets every pending
job to NODE_FAIL that names the partition (as its only one, as one of several, held, in an array) or requires the node
(`-w`). It deletes every reservation that names the partition or the node. A job that excludes the node (`-x`), or that
needs more nodes than are left, stays PENDING.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshd.model.ids import slot_index
from meshd.model.observed import SlurmJob, SlurmReservation
from meshd.slurm.conf import parse
from meshd.slurm.nodes import PoolLine
from meshd.slurm.show import hostlist


@dataclass(frozen=True, slots=True)
class Leaving:
    """The partitions and slots that a new nodes.conf would no longer have."""

    partitions: frozenset[str]
    slots: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.partitions or self.slots)

    def named_by_job(self, job: SlurmJob) -> bool:
        """Whether Slurm would end this job."""
        return not self.partitions.isdisjoint(job.partition.split(",")) or not self.slots.isdisjoint(job.required_nodes)

    def named_by_reservation(self, reservation: SlurmReservation) -> bool:
        """Whether Slurm would delete this reservation, or take nodes from it."""
        return reservation.partition in self.partitions or not self.slots.isdisjoint(reservation.nodes)


@dataclass(frozen=True, slots=True)
class Retained:
    """A part of a pool that stays for now.

    Attributes:
        partition: the partition that the settings no longer have; "" when only slots leave.
        slots: the slots that the settings no longer have, and that a job or reservation names.
        jobs: ids of the jobs that name it.
        reservations: names of the reservations that name it.
        other: a partition that stays in the settings; "" when there is none.
    """

    pool: str
    partition: str = ""
    slots: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    reservations: tuple[str, ...] = ()
    other: str = ""


def leaving_of(pools: Sequence[PoolLine], before: Mapping[str, PoolLine]) -> Leaving:
    """The partitions and slots of `before` that `pools` no longer have."""
    now = {pool.name: pool for pool in pools}
    there = {pool.partition or pool.name for pool in pools}
    sizes = {name: now[name].max_nodes if name in now else 0 for name in before}
    return Leaving(
        frozenset(old.partition for old in before.values()) - there,
        frozenset(f"{name}-{i}" for name, old in before.items() for i in range(sizes[name] + 1, old.max_nodes + 1)),
    )


def leaving_of_texts(nodes_conf: str, last_good: str) -> Leaving:
    """The partitions and nodes of `last_good` that `nodes_conf` no longer has, whoever wrote either."""
    new, old = parse(nodes_conf), parse(last_good)
    slots = [
        {slot for record in conf.records("NodeName") for slot in hostlist(record["nodename"])} for conf in (new, old)
    ]
    partitions = [{record["partitionname"] for record in conf.records("PartitionName")} for conf in (new, old)]
    return Leaving(frozenset(partitions[1] - partitions[0]), frozenset(slots[1] - slots[0]))


def retain(
    pools: Sequence[PoolLine],
    before: Mapping[str, PoolLine],
    jobs: Iterable[SlurmJob],
    reservations: Iterable[SlurmReservation],
) -> tuple[tuple[PoolLine, ...], tuple[Retained, ...]]:
    """The pools with the parts that must stay for now, and a Retained for each such part.

    Args:
        pools: those of the settings.
        before: those in force, from `read_pools`.
        jobs: every job that Slurm has.
        reservations: every reservation that Slurm has.
    """
    leaving = leaving_of(pools, before)
    jobs = [job for job in jobs if leaving.named_by_job(job)]
    reservations = [one for one in reservations if leaving.named_by_reservation(one)]
    if not jobs and not reservations:
        return tuple(pools), ()
    wanted = {job_partition for job in jobs for job_partition in job.partition.split(",")}
    wanted |= {one.partition for one in reservations}
    required = {slot for job in jobs for slot in job.required_nodes} | {s for one in reservations for s in one.nodes}
    kept = {pool.name: pool for pool in pools}
    other = next((pool.partition or pool.name for pool in pools), "")
    parts: list[Retained] = []
    for name, old in sorted(before.items()):
        partition = old.partition if old.partition in leaving.partitions & wanted else ""
        slots = tuple(sorted(slot for slot in required & leaving.slots if slot_index(name, slot)))
        if not partition and not slots:
            continue
        now = kept.get(name)
        if now is None:
            kept[name] = replace(old, default=False, leaving=True)
        else:
            size = max([now.max_nodes, *(slot_index(name, slot) or 0 for slot in slots)])
            kept[name] = replace(now, max_nodes=size, partition=partition or now.partition, leaving=bool(partition))
        mine = Leaving(frozenset({partition} - {""}), frozenset(slots))
        parts.append(
            Retained(
                name, partition, slots, tuple(job.id for job in jobs if mine.named_by_job(job)),
                tuple(one.name for one in reservations if mine.named_by_reservation(one)), other,
            )
        )  # fmt: skip
    return tuple(kept.values()), tuple(parts)
