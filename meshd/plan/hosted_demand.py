"""The slots of hosts that Slurm demands: each takes its own host, or its job goes back to the queue. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from meshd.codes import DemandCode
from meshd.model.desired import Pool
from meshd.model.plan import RefusedDemand, RequestMachine
from meshd.plan.demand import Gang
from meshd.plan.demand_growth import again_at
from meshd.plan.hosts import Bound
from meshd.plan.plan_input import PlanInput
from meshd.plan.room import Money


class HostedDemand:
    """Decides about the demanded slots of one pool's hosts.

    Args:
        pool: the pool.
        owned: the slots of its hosts.
        given: the observed state.
        frozen: nothing is rented: that is why.

    Attributes:
        refused: the gangs that cannot have a host; filled by `without`.
    """

    def __init__(self, pool: Pool, owned: Bound, given: PlanInput, *, frozen: bool = False) -> None:
        self._pool = pool
        self._owned = owned
        self._given = given
        self._frozen = frozen
        self._mine: list[Gang] = []
        self.refused: list[RefusedDemand] = []

    def without(self, gangs: Sequence[Gang]) -> list[Gang]:
        """What is left to be rented for: a gang that cannot have all its hosts gets nothing."""
        left = []
        for gang in gangs:
            mine = [slot for slot in gang.slots if slot in self._owned.slots]
            whys = [self._owned.whys[slot] for slot in mine if slot in self._owned.whys]
            if whys:
                code = DemandCode.FROZEN if self._frozen else DemandCode.NO_CAPACITY
                until = again_at(self._given.now)
                self.refused.append(RefusedDemand(self._pool.name, gang.jobs, gang.slots, code, whys[0], until))
                continue
            if mine:
                self._mine.append(gang)
            rest = tuple(slot for slot in gang.slots if slot not in mine)
            if rest:
                left.append(replace(gang, slots=rest))
        return left

    def requests(self, refused: Set[str], money: Money) -> Iterator[RequestMachine]:
        """The machines of sleeping hosts, for the gangs of which no other slot was refused."""
        for gang in self._mine:
            if not refused.isdisjoint(gang.slots):
                continue
            for slot in gang.slots:
                offer = self._owned.free.get(slot)
                if offer is not None and not offer.standing:
                    money.spend(self._pool.name, [slot], offer)
                    yield RequestMachine(
                        slot, f"Slurm powers it up for {gang.words}", self._pool.name, offer, by_queue=True,
                        for_jobs=self._given.configuring_jobs.get(slot, ()),
                    )  # fmt: skip
