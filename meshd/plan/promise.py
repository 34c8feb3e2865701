"""PURE: the promise of a pool: the hardware that Slurm's line says of each of its slots, and what holds it.

A slot that Slurm powers up has its shape before anybody knows which machine it will get. So the shape is that of the
smallest offer that suits the pool, and a machine with less is neither rented nor accepted. What a pool's settings say
wins (`cpus_min`, `memory_min_mib`).

Memory: slurmd sees less than the vendor's number. AWS ParallelCluster and Azure CycleCloud promise 95 % of it, Google's
Slurm scripts about 97 %; a machine of 1 GiB shows 93 to 96 %. Slurm accepts a CLOUD node that registers with at least
90 % of its line (`node_reg_mem_percent`, DEFAULT_CLOUD_REG_MEM_PERCENT in slurmctld's node_mgr.c).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median_low

from meshd.model.desired import Pool, Promise, Target
from meshd.model.hardware import NodeFacts
from meshd.plan.limits import COUNT_MAX, MEMORY_MAX_MIB, MEMORY_MIN_MIB, cpus_of, memory_promised_mib
from meshd.plan.placement import Miss, misses, nearest
from meshd.provider_api import Offer

REGISTERS_WITH = 0.9
"""The part of the promised memory with which Slurm accepts a CLOUD node."""
FAR_BELOW = 0.5
"""An offer is far below the others when it has less than this part of what the offer in the middle has."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """What the settings say of each slot; None where they say nothing."""

    cpus: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class ByCatalogue:
    """What a pool can promise, by what can be rented for it.

    Attributes:
        promise: the least of the offers that suit, or what the settings say.
        cpus_of, memory_of: the offers with the fewest CPUs and the least memory; None where the settings decide.
        instance_types: how many different ones suit.
        offers: how many suit.
        usual_cpus, usual_memory_mib: what the offer in the middle has, by the vendor's numbers.
    """

    promise: Promise
    cpus_of: Offer | None
    memory_of: Offer | None
    instance_types: int
    offers: int
    usual_cpus: int
    usual_memory_mib: int

    @property
    def far_below(self) -> tuple[Offer, ...]:
        """The offers that alone make the promise much smaller than the others could hold."""
        cpus, memory = FAR_BELOW * self.usual_cpus, FAR_BELOW * self.usual_memory_mib
        few = self.cpus_of if self.cpus_of and self.cpus_of.vcpus < cpus else None
        little = self.memory_of if self.memory_of and self.memory_of.memory_mib < memory else None
        return tuple({offer.key: offer for offer in (few, little) if offer is not None}.values())


def suiting(offers: Iterable[Offer], pool: Pool) -> list[Offer]:
    """The offers that a pool may rent at some time: what passes, such as free capacity, does not count."""
    return [o for o in offers if next(misses(_always(o), _any_time(pool), Target(pool.name, 0)), None) is None]


def nearest_to(offers: Iterable[Offer], pool: Pool) -> tuple[Offer, tuple[Miss, ...]] | None:
    """Where none suits: the offer of the pool's GPU that comes nearest, and what is against it; None for none."""
    return nearest(map(_always, offers), _any_time(pool), Target(pool.name, 0))


def _any_time(pool: Pool) -> Pool:
    return replace(pool, promise=None, prices_since=None)


def _always(offer: Offer) -> Offer:
    return replace(offer, available=None, slot="")


def by_catalogue(offers: Iterable[Offer], pool: Pool, fixed: Fixed, memory_fraction: float) -> ByCatalogue | None:
    """What the pool can promise; None when no offer suits, so that nothing is known.

    Args:
        offers: of all providers; in any order.
        pool: the pool.
        fixed: what its settings say.
        memory_fraction: the part of a machine's memory that is promised.
    """
    suit = suiting(offers, pool)
    if not suit:
        return None
    fewest = min(suit, key=lambda o: (o.vcpus, o.key))
    least = min(suit, key=lambda o: (o.memory_mib, o.key))
    cpus = fixed.cpus if fixed.cpus is not None else fewest.vcpus
    memory_mib = fixed.memory_mib
    if memory_mib is None:
        memory_mib = memory_promised_mib(least.memory_mib, memory_fraction)
    return ByCatalogue(
        promise=Promise(
            cpus=min(max(cpus, 1), COUNT_MAX),
            memory_mib=min(max(memory_mib, MEMORY_MIN_MIB), MEMORY_MAX_MIB),
            gpus=pool.gpus_per_node,
        ),
        cpus_of=fewest if fixed.cpus is None else None,
        memory_of=least if fixed.memory_mib is None else None,
        instance_types=len({(o.provider, o.instance_type) for o in suit}),
        offers=len(suit),
        usual_cpus=median_low(o.vcpus for o in suit),
        usual_memory_mib=median_low(o.memory_mib for o in suit),
    )


def settled(in_force: Promise | None, found: Promise | None, *, in_use: bool, may_rise: bool) -> Promise | None:
    """The promise from now on.

    A node's shape must not change while a job has it or waits for it, so nothing changes while the pool is in use.
    It rises only when that is certain: the smallest offers may be missing for a while.

    Args:
        in_force: the last one; None when there was none.
        found: by the catalogue; None when nothing is known.
        in_use: a machine has a slot of the pool, a job has one or waits for one, or that cannot be seen.
        may_rise: the offers that would not hold a larger one are gone for good, or the settings have changed.
    """
    if in_force is None or found is None or found == in_force:
        return in_force or found
    rises = found.cpus > in_force.cpus or found.memory_mib > in_force.memory_mib or found.gpus > in_force.gpus
    return in_force if in_use or (rises and not may_rise) else found


def least_of(promise: Promise, machines: Iterable[NodeFacts], memory_fraction: float) -> Promise:
    """A first promise that the machines which are nodes already hold too."""
    for facts in machines:
        promise = Promise(
            cpus=min(promise.cpus, cpus_of(facts.shape)),
            memory_mib=min(promise.memory_mib, memory_promised_mib(facts.shape.memory_mib, memory_fraction)),
            gpus=promise.gpus,
        )
    return promise


def shortfall(facts: NodeFacts, promise: Promise) -> str:
    """Which number of a machine is less than its slot promises, for people; "" when it holds the promise."""
    cpus, memory_mib, gpus = cpus_of(facts.shape), facts.shape.memory_mib, len(facts.gpus)
    least_mib = int(promise.memory_mib * REGISTERS_WITH)
    short = []
    if cpus < promise.cpus:
        short.append(f"{cpus} CPUs, and its slot promises {promise.cpus}")
    if memory_mib < least_mib:
        short.append(f"{memory_mib} MiB of memory, and its slot promises {promise.memory_mib}")
    if gpus < promise.gpus:
        short.append(f"{gpus} GPUs, and its slot promises {promise.gpus}")
    return "it has " + "; ".join(short) if short else ""


def words(promise: Promise) -> str:
    """A promise for people: "26 CPUs, 194560 MiB, 1 GPU"."""
    gpus = f", {promise.gpus} GPU{'' if promise.gpus == 1 else 's'}" if promise.gpus else ""
    return f"{promise.cpus} CPU{'' if promise.cpus == 1 else 's'}, {promise.memory_mib} MiB{gpus}"


def small(pool: str, found: ByCatalogue) -> str:
    """Which offers make a pool's promise small, for people."""
    names = " and ".join(f"{o.key} ({o.vcpus} CPUs, {o.memory_mib} MiB)" for o in found.far_below)
    return (
        f"each node of pool {pool} promises only {words(found.promise)} because of {names}; half of its {found.offers} "
        f"offers have {found.usual_cpus} CPUs and {found.usual_memory_mib} MiB or more"
    )


def small_cure(pool: str, found: ByCatalogue) -> str:
    """How to leave such offers out."""
    return (
        f"set cpus_min = {found.usual_cpus} and memory_min_mib = {found.usual_memory_mib} in [pools.{pool}], "
        "or name providers or regions"
    )
